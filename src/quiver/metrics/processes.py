"""Metrics of several processes of one machine as one text: each sample carries its process. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

_HELP = b"# HELP "
_WITH_LABELS = re.compile(rb"^([A-Za-z_:][A-Za-z0-9_:]*)\{", re.MULTILINE)
_WITHOUT = re.compile(rb"^([A-Za-z_:][A-Za-z0-9_:]*) ", re.MULTILINE)


def with_process(text: bytes, process: int) -> bytes:
    """The text with the label ``process`` on each sample."""
    label = b'process="%d"' % process
    return _WITHOUT.sub(rb"\1{%s} " % label, _WITH_LABELS.sub(rb"\1{%s," % label, text))


def merged(texts: Iterable[bytes]) -> bytes:
    """One text with the samples of all, in which each metric is described once."""
    families: dict[bytes, list[bytes]] = {}
    for text in texts:
        for family in text.split(_HELP)[1:]:
            head, samples = _parted(family)
            families.setdefault(head, []).append(samples)
    return b"".join(_HELP + head + b"".join(samples) for head, samples in families.items())


def _parted(family: bytes) -> tuple[bytes, bytes]:
    """Its description of two lines, and its samples."""
    end = family.index(b"\n", family.index(b"\n") + 1) + 1
    return family[:end], family[end:]
