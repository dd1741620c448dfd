"""The bootstrap token: the first token of a node with authentication.

A node without tokens creates one that may do everything, and writes it to a file in the data folder
that only the node's user can read. Move it to where you keep secrets. If several nodes start together
on one metadata store, one of them creates it.
"""

from __future__ import annotations

import contextlib
import os

from quiver.edge.auth.permissions import EVERYTHING
from quiver.edge.auth.tokens import TokenStore

FILE = "admin.token"
NAME = "admin"


async def make_bootstrap_token(tokens: TokenStore, folder: str) -> str | None:
    """The path of the file, if there was no token and one was made."""
    if not tokens.is_empty:
        return None
    draft = tokens.draft(NAME, [str(grant) for grant in EVERYTHING])
    path = os.path.join(folder, FILE)
    # The file first: a crash in between leaves a file that the next start replaces, and no token
    # that nobody has.
    write_secret(path, draft.text + "\n")
    if await tokens.keep_first(draft):
        return path
    os.unlink(path)
    return None


def write_secret(path: str, text: str) -> None:
    """Whole or not at all, and for nobody else to read at any time."""
    partial = f"{path}.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(partial)  # of a start that was killed; whatever it is, it is not followed
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    descriptor = os.open(partial, flags, 0o600)
    try:
        os.fchmod(descriptor, 0o600)
        os.write(descriptor, text.encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.replace(partial, path)
