"""The forms of text in requests: a pattern for each, and words for one that does not match.

Msgspec reports the pattern itself, which tells a person nothing.
"""

from __future__ import annotations

import re
from typing import Any

from quiver.model.subscription import TOPIC_PATTERN, URL_PATTERN
from quiver.model.topic import NAME_PATTERN

_DECIMAL = r"[0-9]{1,12}(\.[0-9]{1,6})?"
_TIME = f"{_DECIMAL}(us|ms|s|m|h|d|w)"
SIZE = f"^{_DECIMAL} ?(([KMGTkmgt]i?)?[Bb])?$"
DURATION = f"^({_DECIMAL}|({_TIME}){{1,7}})$"
"""Seconds, or one or several parts as in ``1h30m``."""
MESSAGE_ID = "^[0-9a-v]{32}$"
_WORDS = {
    NAME_PATTERN: "not a name: use 1 to 200 letters, digits, '.', '_' or '-'",
    TOPIC_PATTERN: "not a topic or pattern: use 1 to 200 letters, digits, '.', '_', '-' or '*'",
    SIZE: "not a size: write bytes, or text such as '10MB', '1.5GB' or '256MiB'",
    DURATION: "not a duration: write seconds, or text such as '30s', '1h30m' or '7d'",
    MESSAGE_ID: "not a message id: it has 32 digits and letters a to v",
    URL_PATTERN: "not a URL: it begins with http:// or https://",
}
_MISMATCH = re.compile(r"Expected `str` matching regex (?P<quote>['\"])(?P<pattern>.*)(?P=quote)")

_BOUND = re.compile(r"Expected `(int|float)` [<>]=? [0-9.e+-]+")


def explained(reason: str, value: Any = None) -> str:
    """What msgspec says of a value, with words in place of a pattern, and the value if it is known."""
    found = _MISMATCH.fullmatch(reason)
    if found is None:
        is_bound = _BOUND.fullmatch(reason) and isinstance(value, str | int | float)
        return f"{reason}, not {_short(value)}" if is_bound else reason
    shown = found["pattern"]
    words = next((words for form, words in _WORDS.items() if repr(form)[1:-1] == shown), reason)
    return f"{_short(value)} is {words}" if isinstance(value, str) and words != reason else words


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "…"
