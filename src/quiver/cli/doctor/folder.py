"""Check of the data folder's version: which Quiver wrote it, and which ones can open it."""

from __future__ import annotations

import os

from quiver.cli.doctor.finding import Finding, failure, ok, warning
from quiver.config import NodeConfig
from quiver.folder_version import BYTES_MAX, FILE, FolderVersion, decode_version
from quiver.formats import FIRST_RELEASE

_CHECK = "data folder"
_PAGE = "see docs/howto/upgrade.md"


def version_of_folder(config: NodeConfig, planned: str | None = None) -> Finding:
    """Whether ``planned``, or else this Quiver, can open the data folder."""
    path = os.path.join(config.data, FILE)
    try:
        with open(path, "rb") as file:
            found = decode_version(file.read(BYTES_MAX))
    except FileNotFoundError:
        return _unmarked(config.data)
    except OSError as error:
        return warning(
            _CHECK, f"{path} cannot be read: {error.strerror}", "run this as the node's user"
        )
    if found is None:
        return warning(
            _CHECK,
            f"{path} is damaged: which versions can open the folder is not known",
            "start the node with the version that ran last; it writes the file anew",
        )
    return _judged(config.data, found, planned)


def _judged(folder: str, found: FolderVersion, planned: str | None) -> Finding:
    if found.unknown:
        return failure(
            _CHECK,
            f"{folder} was written by Quiver {found.quiver} and has {', '.join(found.unknown)}",
            f"use Quiver {found.needs} or later; {_PAGE}",
        )
    because = ", ".join(found.obstacles)
    limit = f"Quiver older than {found.needs} cannot open {folder}, because it has {because}"
    if planned is not None and found.excludes(planned):
        return failure(
            _CHECK, limit, f"do not go back to {planned}, or restore a backup with it; {_PAGE}"
        )
    opens = limit if found.excludes(FIRST_RELEASE) else f"every Quiver can open {folder}"
    return ok(_CHECK, f"Quiver {found.quiver} used it last; {opens}")


def _unmarked(folder: str) -> Finding:
    if not os.path.isdir(folder):
        return ok(_CHECK, f"{folder} is not there yet")
    return ok(_CHECK, f"{folder} has no {FILE}: every Quiver can open it")
