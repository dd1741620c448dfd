"""Durations and sizes as text: ``"30s"``, ``"1h30m"``, ``"-7d"``, ``"256MiB"``, ``"1KB"``.

Numbers without a unit are seconds or bytes. Errors are ``InvalidSetting``.
"""

from __future__ import annotations

import math
import re
from datetime import timedelta
from decimal import Decimal

from quiver.errors import InvalidSetting

Duration = str | int | float | timedelta
Size = str | int

_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_BYTES: dict[str, int] = {
    "": 1,
    "B": 1,
    **{prefix + "B": 1000**power for power, prefix in enumerate(("K", "M", "G", "T"), 1)},
    **{prefix + "iB": 1024**power for power, prefix in enumerate(("K", "M", "G", "T"), 1)},
}
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(us|ms|s|m|h|d|w)")
_SIZE = re.compile(r"(\d{1,20}(?:\.\d{1,20})?) ?([KMGT]?i?B?)", re.IGNORECASE)
_SECONDS_SHOWN_MAX = 1e12
_SIZE_UNITS = {unit.lower(): factor for unit, factor in _BYTES.items()}


def seconds(duration: Duration) -> float:
    """The duration in seconds; may be negative (``"-1h"``)."""
    if isinstance(duration, timedelta):
        return duration.total_seconds()
    if isinstance(duration, bool) or not isinstance(duration, str | int | float):
        raise _not("duration", duration)
    if not isinstance(duration, str):
        return _finite(duration, duration)
    text = duration.strip()
    sign, digits = (-1, text[1:]) if text.startswith("-") else (1, text)
    if not digits.startswith(("+", "-")):
        try:
            return sign * _finite(float(digits), duration)
        except ValueError:
            pass
    parts = list(_DURATION_PART.finditer(digits))
    if not parts or "".join(part.group() for part in parts) != digits:
        raise _not("duration", duration)
    return sign * _finite(sum(float(part[1]) * _SECONDS[part[2]] for part in parts), duration)


def microseconds(duration: Duration) -> int:
    return round(seconds(duration) * 1_000_000)


def size_bytes(size: Size) -> int:
    """The size in bytes."""
    if isinstance(size, int) and not isinstance(size, bool):
        return size
    match = _SIZE.fullmatch(size.strip()) if isinstance(size, str) else None
    if match is None or match[2].lower() not in _SIZE_UNITS:
        raise _not("size", size)
    return int(Decimal(match[1]) * _SIZE_UNITS[match[2].lower()])


def duration_text(duration_s: float) -> str:
    """The duration exactly as it may be written: ``"12h"``, ``"1m30s"``, ``"50ms"``, ``"0s"``."""
    if abs(duration_s) >= _SECONDS_SHOWN_MAX:
        return f"{duration_s:g}s"
    sign = "-" if duration_s < 0 else ""
    left = round(abs(duration_s) * 1_000_000)
    if 0 < left < 1_000_000 and left % 1000 == 0:
        return f"{sign}{left // 1000}ms"
    parts = []
    for unit, length in (("d", 86_400), ("h", 3600), ("m", 60)):
        count, left = divmod(left, length * 1_000_000)
        parts += [f"{count}{unit}"] if count else []
    if left or not parts:
        whole, rest = divmod(left, 1_000_000)
        parts.append(f"{whole}.{rest:06d}".rstrip("0").rstrip(".") + "s")
    return sign + "".join(parts)


def size_text(size: int) -> str:
    """The size exactly as it may be written: ``"10GB"``, ``"256MiB"``, ``"1500"``."""
    written = [
        f"{size // base**power}{prefix}{suffix}"
        for base, suffix in ((1024, "iB"), (1000, "B"))
        for power, prefix in enumerate("KMGT", 1)
        if size and size % base**power == 0
    ]
    return min([*written, str(size)], key=len)


def _finite(number: float, given: Duration) -> float:
    try:
        number = float(number)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise _not("duration", given)
    return number


_EXAMPLES = {"duration": "'30s', '1h30m' or '7d'", "size": "'10MB' or '256MiB'"}


def _not(what: str, given: object) -> InvalidSetting:
    text = repr(given[:80] if isinstance(given, str) else given)
    return InvalidSetting(f"{text[:90]} is not a {what}; write it as {_EXAMPLES[what]}")
