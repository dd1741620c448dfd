"""``version.json`` of a data folder: which Quiver wrote it, and which formats are in it.

It tells an older Quiver that it cannot open the folder before that one touches anything. A folder without
the file was written before there was one: all its formats have version 1.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from quiver.formats import STORED, Format, release, stored_versions
from quiver.version import __version__

FILE = "version.json"
BYTES_MAX = 1 << 16


class FolderVersion(msgspec.Struct, frozen=True, kw_only=True):
    quiver: str
    """The version that used the folder last."""
    needs: str
    """The oldest version that can open it."""
    formats: dict[str, int]
    """The newest version of each format that may be in the folder."""

    @property
    def unknown(self) -> list[str]:
        """What is in the folder and this Quiver cannot read, as text."""
        known = stored_versions()
        return [
            f"{name} {version} (this Quiver reads {known.get(name) or 'none'})"
            for name, version in sorted(self.formats.items())
            if version > known.get(name, 0)
        ]

    @property
    def obstacles(self) -> list[str]:
        """The formats that no version before ``needs`` reads, as text."""
        return [
            f"{one.name} {version}"
            for one in STORED
            if 0 < (version := self.formats.get(one.name, 0)) <= one.newest
            and release(one.since[version - 1]) >= release(self.needs)
        ]

    def excludes(self, version: str) -> bool:
        """Whether this version of Quiver is too old for the folder."""
        return release(version) < release(self.needs)


def used_by_this(before: FolderVersion | None, needed: Collection[Format] = ()) -> FolderVersion:
    """What to write when this Quiver, which reads all that was there before, uses the folder.

    Of the formats that are ``needed`` it writes the newest version, of others what it writes at its start.
    """
    formats = {} if before is None else before.formats
    used = {
        one.name: max(
            one.newest if one in needed else one.at_start,
            formats.get(one.name, 0),
        )
        for one in STORED
    }
    needs = max((one.since[used[one.name] - 1] for one in STORED), key=release)
    return FolderVersion(quiver=__version__, needs=needs, formats=used)


def of_unknown_content() -> FolderVersion:
    """What to assume of a folder whose ``version.json`` is damaged: it has all that this Quiver reads."""
    return FolderVersion(quiver="", needs="", formats=stored_versions())


def encode_version(version: FolderVersion) -> bytes:
    return msgspec.json.format(msgspec.json.encode(version)) + b"\n"


def decode_version(data: bytes) -> FolderVersion | None:
    """``None`` if it is damaged."""
    try:
        return msgspec.json.decode(data, type=FolderVersion)
    except msgspec.MsgspecError:
        return None
