"""The text that names a transaction and lets its holder write to it and end it: for HTTP.

It has all that a node needs to go on with the transaction: its number, its time limit, the token that shows
that its holder was given it, and its name. So any node takes any request of it. It is safe in a URL.
"""

from __future__ import annotations

import base64
import struct

import msgspec

from quiver.errors import TransactionNotFound
from quiver.model.transaction import TransactionId

NAME_BYTES_MAX = 100
"""A name makes the text longer, which has to fit into a header."""
TEXT_LENGTH_MAX = 200
_PREFIX = "tx_"
_FIXED = struct.Struct("<qIB")
_NUMBER_MAX = (1 << 63) - 1


class TransactionReference(msgspec.Struct, frozen=True):
    number: TransactionId
    timeout_ms: int
    token: bytes
    name: str | None = None

    @property
    def text(self) -> str:
        fixed = _FIXED.pack(self.number, self.timeout_ms, len(self.token))
        data = fixed + self.token + (self.name or "").encode()
        return _PREFIX + base64.urlsafe_b64encode(data).decode().rstrip("=")


def reference_in(text: str) -> TransactionReference:
    """The transaction of a text; ``TransactionNotFound`` if it is none."""
    try:
        data = base64.b64decode(_padded(text), altchars=b"-_", validate=True)
        number, timeout_ms, token_size = _FIXED.unpack_from(data)
        rest = data[_FIXED.size :]
        token, name = rest[:token_size], rest[token_size:].decode()
    except (ValueError, struct.error):
        raise _none(text) from None
    found = TransactionReference(TransactionId(number), timeout_ms, token, name or None)
    if number <= 0 or len(token) != token_size or found.text != text:
        raise _none(text)
    return found


def number_in(text: str) -> TransactionId:
    """The number of a transaction: by its text, or as it is."""
    if text.isascii() and text.isdigit() and len(text) < 20 and 0 < int(text) <= _NUMBER_MAX:
        return TransactionId(int(text))
    return reference_in(text).number


def _padded(text: str) -> str:
    if not text.startswith(_PREFIX) or len(text) > TEXT_LENGTH_MAX:
        raise ValueError
    body = text.removeprefix(_PREFIX)
    return body + "=" * (-len(body) % 4)


def _none(text: str) -> TransactionNotFound:
    return TransactionNotFound(f"{text[:80]!r} is not the id of a transaction", field="transaction")
