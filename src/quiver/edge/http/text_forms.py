"""The forms of text in requests: a pattern for each, and words for one that does not match.

Msgspec reports the pattern itself, which tells a person nothing.
"""

from __future__ import annotations

import re

NAME = r"^[A-Za-z0-9_.\-]{1,200}$"
TOPIC_PATTERN = r"^[A-Za-z0-9_.*\-]{1,200}$"
SIZE = r"^[0-9]{1,9} ?([KMGT]i?)?B?$"
DURATION = r"^[0-9]{1,9}(\.[0-9]{1,6})?(us|ms|s|m|h|d|w)?$"
MESSAGE_ID = "^[0-9a-v]{32}$"
URL = "^https?://"
_WORDS = {
    NAME: "not a name: use 1 to 200 letters, digits, '.', '_' or '-'",
    TOPIC_PATTERN: "not a topic or pattern: use 1 to 200 letters, digits, '.', '_', '-' or '*'",
    SIZE: "not a size: write bytes, or text such as '10MB' or '256MiB'",
    DURATION: "not a duration: write seconds, or text such as '30s', '5m' or '1h'",
    MESSAGE_ID: "not a message id: it has 32 digits and letters a to v",
    URL: "not a URL: it begins with http:// or https://",
}
_MISMATCH = re.compile(r"Expected `str` matching regex (?P<quote>['\"])(?P<pattern>.*)(?P=quote)")


def explained(reason: str) -> str:
    """What msgspec says of a value, with words in place of a pattern."""
    found = _MISMATCH.fullmatch(reason)
    if found is None:
        return reason
    shown = found["pattern"]
    return next((words for form, words in _WORDS.items() if repr(form)[1:-1] == shown), reason)
