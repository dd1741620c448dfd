"""The forms of text in requests: a pattern for each, and words for one that does not match.

Msgspec reports the pattern itself, which tells a person nothing.
"""

from __future__ import annotations

import re

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
    SIZE: "not a size: write bytes, or text such as '10MB' or '256MiB'",
    DURATION: "not a duration: write seconds, or text such as '30s', '5m' or '1h'",
    MESSAGE_ID: "not a message id: it has 32 digits and letters a to v",
    URL_PATTERN: "not a URL: it begins with http:// or https://",
}
_MISMATCH = re.compile(r"Expected `str` matching regex (?P<quote>['\"])(?P<pattern>.*)(?P=quote)")


def explained(reason: str) -> str:
    """What msgspec says of a value, with words in place of a pattern."""
    found = _MISMATCH.fullmatch(reason)
    if found is None:
        return reason
    shown = found["pattern"]
    return next((words for form, words in _WORDS.items() if repr(form)[1:-1] == shown), reason)
