"""Reads a Dockerfile: its stages and their instructions, in order. What it does not know is an error."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import NamedTuple

KNOWN = frozenset(
    [
        "ARG",
        "CMD",
        "COPY",
        "ENTRYPOINT",
        "ENV",
        "EXPOSE",
        "FROM",
        "HEALTHCHECK",
        "LABEL",
        "RUN",
        "STOPSIGNAL",
        "USER",
        "VOLUME",
        "WORKDIR",
    ]
)


class Instruction(NamedTuple):
    name: str
    text: str

    @property
    def words(self) -> list[str]:
        """Of the exec form, which is JSON."""
        words: list[str] = json.loads(self.text)
        return words

    @property
    def pairs(self) -> dict[str, str]:
        return dict(word.split("=", 1) for word in shlex.split(self.text))


class Stage(NamedTuple):
    instructions: list[Instruction]

    def all(self, name: str) -> list[Instruction]:
        return [one for one in self.instructions if one.name == name]

    def one(self, name: str) -> Instruction:
        (found,) = self.all(name)
        return found

    @property
    def environment(self) -> dict[str, str]:
        return {name: text for one in self.all("ENV") for name, text in one.pairs.items()}

    @property
    def command(self) -> list[str]:
        """What a container of this stage runs."""
        return [*self.one("ENTRYPOINT").words, *self.one("CMD").words]

    @property
    def health_check(self) -> tuple[dict[str, str], list[str]]:
        """The options and the command."""
        options, _, command = self.one("HEALTHCHECK").text.partition("CMD")
        return (
            dict(word.removeprefix("--").split("=", 1) for word in options.split()),
            json.loads(command),
        )


def stages(path: Path) -> list[Stage]:
    text = "\n".join(
        line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")
    )
    found: list[Stage] = []
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        if not line.strip():
            continue
        name, _, rest = line.partition(" ")
        assert name in KNOWN, f"not an instruction of a Dockerfile: {line}"
        if name == "FROM":
            found.append(Stage([]))
        if found:
            found[-1].instructions.append(Instruction(name, rest.strip()))
        else:
            assert name == "ARG", "only ARG may come before FROM"
    return found
