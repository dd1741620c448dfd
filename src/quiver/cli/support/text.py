"""Values as people read and write them on the command line.

Sizes and times are rounded for reading; what came from a message is made harmless first, because a
payload may hold control characters that a terminal would obey.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime

from quiver.errors import InvalidSetting
from quiver.formats import release
from quiver.model.units import seconds, size_text
from quiver.protocol import NodeInfo

_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_DAY_S = 86_400


def shown_bytes(size: float | None) -> str:
    """``1536`` as ``1.5 KiB``; nothing known as a dash."""
    if size is None:
        return "-"
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:,.0f} {unit}" if unit == "bytes" else f"{size:,.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} TiB"


def shown_size(size: int | None) -> str:
    """A size that someone chose, exactly as it may be written: ``10GB``, ``256MiB``, ``1500``."""
    return "none" if size is None else size_text(size)


def shown_count(count: int | None) -> str:
    return "-" if count is None else f"{count:,}"


def shown_duration(duration_s: float | None) -> str:
    """``5400`` as ``1h30m``; none as ``none``."""
    if duration_s is None:
        return "none"
    if duration_s < 60:
        return f"{duration_s:g}s"
    parts, left = [], round(duration_s)
    for unit, length in (("d", _DAY_S), ("h", 3600), ("m", 60), ("s", 1)):
        count, left = divmod(left, length)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts)


def shown_time(time_us: int | None) -> str:
    """Microseconds since 1970 as ``2026-01-01T12:00:00.000000Z``."""
    if time_us is None:
        return "-"
    second, micro = divmod(time_us, 1_000_000)
    try:
        moment = datetime.fromtimestamp(second, UTC)
    except (OverflowError, ValueError, OSError):
        return str(time_us)
    return f"{moment.isoformat()[:19]}.{micro:06d}Z"


def harmless(text: str) -> str:
    """The text on one line, with characters that would steer a terminal written as escapes."""
    return _CONTROL.sub(lambda match: ascii(match[0])[1:-1], text)


def parse_moment(text: str) -> datetime | None:
    """An ISO date or time, UTC unless it says otherwise; ``None`` if the text is neither."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def parse_position(text: str, flag: str) -> int | str | datetime:
    """A place in a topic, as the client understands it."""
    if text in ("earliest", "latest"):
        return text
    if text.isascii() and text.isdigit():
        return int(text)
    if (moment := parse_moment(text)) is not None:
        return moment
    try:
        if text.startswith("-") and seconds(text) <= 0:
            return text
    except InvalidSetting:
        pass
    raise InvalidSetting(
        f"{flag}: {text!r} is not a position; write earliest, latest, a time ago (-1h), "
        "a time (2026-01-01T00:00) or an offset (42)"
    )


def plural(count: int, noun: str) -> str:
    """``1 message``, ``2 messages``, ``3 deliveries``, ``4 processes``."""
    if count != 1:
        ending = "es" if noun.endswith("s") else "s"
        noun = noun[:-1] + "ies" if noun.endswith("y") else noun + ending
    return f"{count:,} {noun}"


def parse_pairs(texts: list[str], what: str) -> dict[str, str]:
    """``["a=b"]`` as ``{"a": "b"}``."""
    pairs = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise InvalidSetting(f"{text!r} is not a {what}; write it as NAME=VALUE")
        pairs[name] = value
    return pairs


def versions_of(nodes: Iterable[NodeInfo]) -> dict[str, list[str]]:
    """Live nodes and forwarders by their version, the oldest first."""
    versions: dict[str, list[str]] = {}
    live = [one for one in nodes if one.alive]
    for one in sorted(live, key=lambda one: release(one.version)):
        versions.setdefault(one.version, []).append(one.id)
    return versions


def shown_versions(versions: dict[str, list[str]]) -> str:
    return "; ".join(
        f"{harmless(version) or 'unknown'} on {', '.join(map(harmless, nodes))}"
        for version, nodes in versions.items()
    )
