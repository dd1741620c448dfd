"""A filter's text as tokens, each with its position. The work is linear in the length of the text."""

from __future__ import annotations

import re
from enum import Enum
from typing import NamedTuple

from quiver.model.filter.mistake import Mistake


class TokenKind(Enum):
    WORD = "word"
    MEMBER = "member"
    """A header's name after its dot; the text is without the dot."""
    TEXT = "text"
    """The text is without its quotes."""
    NUMBER = "number"
    SYMBOL = "symbol"
    END = "end"


class Token(NamedTuple):
    kind: TokenKind
    text: str
    position: int

    def is_word(self, *words: str) -> bool:
        return self.kind is TokenKind.WORD and self.text.lower() in words

    def is_symbol(self, *symbols: str) -> bool:
        return self.kind is TokenKind.SYMBOL and self.text in symbols


_TOKEN = re.compile(
    r"""
    (?P<space>  [ \t\r\n]+ )
  | (?P<word>   [A-Za-z_][A-Za-z0-9_]* )
  | (?P<member> \.[A-Za-z0-9_-]+ )
  | (?P<text>   '(?:[^']|'')*+' )
  | (?P<number> -?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)? )
  | (?P<foreign> == | && | \|\| )
  | (?P<symbol> <= | >= | <> | != | [=<>(),\[\]] )
    """,
    re.VERBOSE,
)

_FOREIGN = {
    "==": "write = to compare",
    "&&": "write and",
    "||": "write or",
    "!": "write not, or != to compare",
    '"': "write text in single quotes",
    "'": "this text has no closing quote; a quote inside text is written twice",
    ".": "a header's name follows the dot: headers.name, or headers['any name']",
}
"""What people write out of habit, and what it is called here."""


def tokens_of(text: str) -> list[Token]:
    """Every token, the last of which is the end; or the first mistake."""
    tokens: list[Token] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        kind = match.lastgroup if match else "foreign"
        found = match[0] if match else text[position]
        if kind == "foreign":
            raise Mistake(position, _FOREIGN.get(found, f"unexpected {_named(found)}"))
        if kind != "space":
            tokens.append(_token(TokenKind(kind), found, position))
        position += len(found)
    tokens.append(Token(TokenKind.END, "", len(text)))
    return tokens


def _token(kind: TokenKind, found: str, position: int) -> Token:
    if kind is TokenKind.TEXT:
        found = found[1:-1].replace("''", "'")
    elif kind is TokenKind.MEMBER:
        found = found[1:]
    return Token(kind, found, position)


def _named(character: str) -> str:
    return character if character.isprintable() else f"character U+{ord(character):04X}"
