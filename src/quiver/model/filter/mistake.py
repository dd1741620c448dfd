"""What is wrong with a filter's text, and how the place is shown.

Whatever reads the text raises ``Mistake`` with a position; only ``invalid_filter`` makes it the error
that users see: the message, the line in question, and a caret under the place.
"""

from __future__ import annotations

from quiver.errors import InvalidFilter

_SHOWN_AROUND = 40
"""Characters of the line that are shown on either side of the place."""


class Mistake(Exception):
    """Something in the text that is not a filter, at a position counted in characters from 0."""

    def __init__(self, position: int, message: str) -> None:
        super().__init__(message)
        self.position = position
        self.message = message


def invalid_filter(text: str, mistake: Mistake) -> InvalidFilter:
    """The error for a mistake in this text."""
    position = mistake.position
    line_start = text.rfind("\n", 0, position) + 1
    line_end = text.find("\n", position)
    line_end = len(text) if line_end < 0 else line_end
    start = max(line_start, position - _SHOWN_AROUND)
    end = min(line_end, position + _SHOWN_AROUND)
    before = ("…" if start > line_start else "") + _visible(text[start:position])
    after = _visible(text[position:end]) + ("…" if end < line_end else "")
    caret = " " * len(before) + "^"
    return InvalidFilter(
        f"{mistake.message}\n  {(before + after).rstrip()}\n  {caret}", position=position
    )


def _visible(text: str) -> str:
    """The text with one printable character for each of its own, so that the caret stays true."""
    return "".join(
        character if character.isprintable() else " " if character.isspace() else "?"
        for character in text
    )
