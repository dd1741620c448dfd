"""Tokens into an expression, by recursive descent; types are checked on the way.

    either     = all { "or" all }
    all        = unit { "and" unit }
    unit       = "not" unit | "(" either ")" | "true" | "false" | column test
    test       = comparison literal | ["not"] "in" "(" literal { "," literal } ")"
               | ["not"] "like" text | "is" ["not"] "null"

Nesting and the number of literals are bounded, so that no text can exhaust the stack or the node.
"""

from __future__ import annotations

from quiver.model.filter.column import KINDS, Column
from quiver.model.filter.expression import (
    OPPOSITE,
    All,
    Comparison,
    Constant,
    Either,
    Expression,
    Likeness,
    Nullness,
    OneOf,
    joined,
    negated,
)
from quiver.model.filter.lexer import Token, TokenKind
from quiver.model.filter.like import check_pattern, is_general
from quiver.model.filter.literal import Value, value_of
from quiver.model.filter.mistake import Mistake

NESTING_MAX = 50
LITERALS_MAX = 1_000
PATTERNS_MAX = 50
"""Patterns that need a regular expression: each costs as much as ten other tests."""

_KEYWORDS = frozenset({"and", "or", "not", "in", "like", "is", "null", "true", "false"})


def expression_of(tokens: list[Token]) -> Expression:
    """The expression that the tokens spell, all of them; or the first mistake."""
    return _Parser(tokens).whole()


class _Parser:
    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._at = 0
        self._nesting = 0
        self._literals = self._patterns = 0

    def whole(self) -> Expression:
        if self._peek().kind is TokenKind.END:
            raise Mistake(0, "the filter is empty; write one such as headers.region = 'eu'")
        expression = self._either()
        rest = self._peek()
        if rest.kind is not TokenKind.END:
            raise Mistake(rest.position, "expected and, or, or the end of the filter here")
        return expression

    def _peek(self) -> Token:
        return self._tokens[self._at]

    def _take(self) -> Token:
        token = self._peek()
        if token.kind is not TokenKind.END:
            self._at += 1
        return token

    def _take_word(self, word: str) -> bool:
        """Whether the next token is this word; if so, it is taken."""
        is_next = self._peek().is_word(word)
        self._at += is_next
        return is_next

    def _expect_symbol(self, symbol: str, why: str) -> None:
        token = self._take()
        if not token.is_symbol(symbol):
            raise Mistake(token.position, f"expected {symbol} {why}")

    def _either(self) -> Expression:
        parts = [self._all()]
        while self._take_word("or"):
            parts.append(self._all())
        return joined(Either, parts)

    def _all(self) -> Expression:
        parts = [self._unit()]
        while self._take_word("and"):
            parts.append(self._unit())
        return joined(All, parts)

    def _unit(self) -> Expression:
        token = self._take()
        if token.is_word("not"):
            self._nest(token)
            expression = negated(self._unit())
            self._nesting -= 1
            return expression
        if token.is_symbol("("):
            self._nest(token)
            expression = self._either()
            self._expect_symbol(")", "to close the parenthesis")
            self._nesting -= 1
            return expression
        if token.is_word("true", "false"):
            self._count_literal(token)
            return Constant(token.is_word("true"))
        return self._test(self._column(token))

    def _nest(self, token: Token) -> None:
        self._nesting += 1
        if self._nesting > NESTING_MAX:
            raise Mistake(token.position, f"the filter is nested more than {NESTING_MAX} deep")

    def _column(self, token: Token) -> Column:
        if token.kind in (TokenKind.TEXT, TokenKind.NUMBER):
            raise Mistake(
                token.position, "a comparison begins with a column; its value comes after"
            )
        if token.kind is not TokenKind.WORD or token.text.lower() in _KEYWORDS:
            raise Mistake(token.position, "expected a column here, such as key or headers.region")
        if token.text not in KINDS:
            raise Mistake(
                token.position, f"no such column; the columns are {', '.join(sorted(KINDS))}"
            )
        return Column(token.text, self._header_name() if token.text == "headers" else None)

    def _header_name(self) -> str:
        token = self._take()
        if token.kind is TokenKind.MEMBER:
            following = self._peek()
            if following.kind is TokenKind.MEMBER:
                why = "a header's name with a dot goes in brackets: headers['a.b']"
                raise Mistake(following.position, why)
            return token.text
        if not token.is_symbol("["):
            raise Mistake(token.position, "say which header: headers.name, or headers['any name']")
        name = self._take()
        if name.kind is not TokenKind.TEXT:
            raise Mistake(name.position, "expected the header's name in single quotes")
        self._expect_symbol("]", "after the header's name")
        return name.text

    def _test(self, column: Column) -> Expression:
        token = self._take()
        if token.is_symbol(*OPPOSITE, "<>"):
            operator = "!=" if token.text == "<>" else token.text
            return Comparison(column, operator, self._value(column))
        if token.is_word("is"):
            return self._nullness(column)
        is_negated = token.is_word("not")
        if is_negated:
            token = self._take()
        if token.is_word("in"):
            return OneOf(column, self._values(column), is_negated)
        if token.is_word("like"):
            return self._likeness(column, token, is_negated)
        expected = "in or like" if is_negated else "=, !=, <, <=, >, >=, in, like or is null"
        raise Mistake(token.position, f"expected {expected} after the column")

    def _nullness(self, column: Column) -> Expression:
        is_negated = self._take_word("not")
        token = self._take()
        if not token.is_word("null"):
            raise Mistake(token.position, "expected null: write is null, or is not null")
        return Nullness(column, is_negated)

    def _likeness(self, column: Column, like: Token, is_negated: bool) -> Expression:
        if not column.kind.is_text:
            raise Mistake(like.position, f"{column.described}: like compares text")
        pattern = self._peek()
        value = str(self._value(column))
        check_pattern(value, pattern.position)
        self._patterns += is_general(value)
        if self._patterns > PATTERNS_MAX:
            raise Mistake(
                pattern.position,
                f"the filter has more than {PATTERNS_MAX} patterns with _ or with % inside",
            )
        return Likeness(column, value, is_negated)

    def _values(self, column: Column) -> tuple[Value, ...]:
        self._expect_symbol("(", "after in")
        values = [self._value(column)]
        while self._peek().is_symbol(","):
            self._take()
            values.append(self._value(column))
        self._expect_symbol(")", "or a comma after the value")
        return tuple(values)

    def _value(self, column: Column) -> Value:
        token = self._take()
        is_literal = token.kind in (TokenKind.TEXT, TokenKind.NUMBER)
        if not is_literal and not token.is_word("true", "false"):
            raise Mistake(token.position, _why_no_value(token))
        self._count_literal(token)
        return value_of(token, column)

    def _count_literal(self, token: Token) -> None:
        self._literals += 1
        if self._literals > LITERALS_MAX:
            raise Mistake(token.position, f"the filter has more than {LITERALS_MAX:,} values")


def _why_no_value(token: Token) -> str:
    if token.is_word("null"):
        return "nothing equals null: write is null, or is not null"
    if token.kind is TokenKind.WORD and token.text in KINDS:
        return "a column is compared with a value, not with another column"
    return "expected a value here: text in single quotes, or a number"
