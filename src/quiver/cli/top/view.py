"""What the person looks at: topics or queues, in which order, from which row on. Keys change it.

A pure machine: keys go in, and ``rows`` of a sample come out.
"""

from __future__ import annotations

from quiver.cli.top.columns import QUEUES, TOPICS, Column, Row
from quiver.console.snapshot import ConsoleSnapshot
from quiver.errors import InvalidSetting

QUIT = frozenset({"q", "Q", "escape"})
HELP = "q quit  t topics/queues  ←→ sort by  r reverse  ↑↓ scroll"


class View:
    def __init__(self) -> None:
        self.is_ended = False
        self.shows_topics = False
        self.first = 0
        self._sorted = {True: 1, False: 1}
        self._reversed = {True: False, False: False}

    @classmethod
    def of(cls, *, topics: bool = False, sort: str | None = None) -> View:
        view = cls()
        view.shows_topics = topics
        if sort is not None:
            titles = [column.title.lower() for column in view.columns]
            if sort.lower() not in titles:
                raise InvalidSetting(f"--sort is one of {', '.join(titles)}, not {sort!r}")
            view._sorted[topics] = titles.index(sort.lower())
        return view

    @property
    def columns(self) -> tuple[Column, ...]:
        return TOPICS if self.shows_topics else QUEUES

    @property
    def sorted_by(self) -> Column:
        return self.columns[self._sorted[self.shows_topics]]

    @property
    def is_descending(self) -> bool:
        """Numbers begin with the largest and names with the first, unless that is reversed."""
        return self.sorted_by.is_text == self._reversed[self.shows_topics]

    def press(self, key: str) -> None:
        place = self.shows_topics
        if key in QUIT:
            self.is_ended = True
        elif key in {"t", "tab"}:
            self.shows_topics, self.first = not place, 0
        elif key in {"left", "right"}:
            step = 1 if key == "right" else -1
            self._sorted[place] = (self._sorted[place] + step) % len(self.columns)
            self.first = 0
        elif key == "r":
            self._reversed[place] = not self._reversed[place]
            self.first = 0
        elif key in {"down", "j"}:
            self.first += 1
        elif key in {"up", "k"}:
            self.first = max(0, self.first - 1)

    def rows(self, sample: ConsoleSnapshot, room: int) -> list[Row]:
        """As many as there is room for; scrolling ends with the last."""
        every: list[Row] = [*(sample.topics if self.shows_topics else sample.subscriptions)]
        every.sort(key=lambda row: row.name)
        value = self.sorted_by.value
        empty = "" if self.sorted_by.is_text else -1
        every.sort(
            key=lambda row: empty if value(row) is None else value(row), reverse=self.is_descending
        )
        self.first = max(0, min(self.first, len(every) - room))
        return every[self.first : self.first + room]
