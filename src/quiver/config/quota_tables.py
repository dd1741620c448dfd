"""Reads quotas of single principals from the tables of a settings file: ``[quotas.principals.NAME]``."""

from __future__ import annotations

import msgspec

from quiver.config.named_tables import SettingsFile, fields_of, take_tables
from quiver.config.security import Quotas

SECTION = "quotas.principals"
PRINCIPALS_MAX = 10_000


def take_quotas(file: SettingsFile) -> dict[str, dict[str, int]]:
    """What is set for principals by name; the document has it no more afterwards."""
    tables = take_tables(file, SECTION, "quotas of principals", PRINCIPALS_MAX)
    return {
        name: fields_of(file, f"{SECTION}.{name}", table, Quotas) for name, table in tables.items()
    }


def principal_quotas(everybody: Quotas, given: dict[str, dict[str, int]]) -> dict[str, Quotas]:
    """The quotas of these principals: what was not given for one is as it is for everybody."""
    return {name: msgspec.structs.replace(everybody, **some) for name, some in given.items()}
