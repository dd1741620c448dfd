"""Which versions of etcd can be trusted with a cluster."""

from __future__ import annotations

import re
from collections.abc import Mapping

import structlog

from quiver.errors import MetadataError, MetadataUnavailable

OLDEST = (3, 4, 0)
SOUND_SINCE = {(3, 4): (3, 4, 38), (3, 5): (3, 5, 16)}
"""Earlier releases of these lines may corrupt a member after a crash, or lose events of a watch."""

logger = structlog.get_logger()


def check_versions(versions: Mapping[str, str]) -> None:
    """Refuse an etcd that is too old, warn of one that is known to be bad.

    ``versions`` has every endpoint that answered; if none did, ``MetadataUnavailable``.
    """
    if not versions:
        raise MetadataUnavailable("no etcd endpoint answers: check metadata.endpoints")
    for endpoint, text in versions.items():
        version = _numbers(text)
        if version < OLDEST:
            raise MetadataError(f"{endpoint} is etcd {text}; Quiver needs 3.4 or later")
        if is_known_bad(version):
            sound = ".".join(map(str, SOUND_SINCE[version[:2]]))
            logger.warning(
                f"this version of etcd can lose data or hide changes: upgrade it to {sound}",
                endpoint=endpoint,
                version=text,
            )


def is_known_bad(version: tuple[int, ...]) -> bool:
    sound = SOUND_SINCE.get((version[0], version[1]))
    return sound is not None and version < sound


def _numbers(text: str) -> tuple[int, int, int]:
    match = re.match(r"(\d+)\.(\d+)\.(\d+)", text)
    if match is None:
        raise MetadataError(f"etcd reports an unknown version: {text[:80]!r}")
    major, minor, patch = map(int, match.groups())
    return major, minor, patch
