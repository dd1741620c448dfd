"""Transcripts: what a subscription does, as a conversation that a person can read.

Each ``*.txt`` file beside this one is a sequence of commands with what they answer:

    # Why this is here.
    receive limit=2 consumer=ann
    ----
    lease 1 until 00:30: 0, 2 (p9)

The commands are in ``stage.py``. A change of behaviour is reviewed as a change of these files:
``QUIVER_REWRITE_TRANSCRIPTS=1 pytest tests/transcripts`` writes what there is to see now into them.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.transcripts.stage import Stage

FOLDER = Path(__file__).parent
RULE = "----"


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.txt")))
def test_the_subscription_answers_as_in_the_transcript(name: str) -> None:
    path = FOLDER / f"{name}.txt"
    written = path.read_text(encoding="utf-8")
    played = play(written)
    if os.environ.get("QUIVER_REWRITE_TRANSCRIPTS"):
        path.write_text(played, encoding="utf-8")
    else:
        assert played == written


def test_a_transcript_with_another_answer_fails() -> None:
    assert play("publish count=2\n----\noffsets 0-2\n") == "publish count=2\n----\noffsets 0-1\n"


def play(text: str) -> str:
    """The transcript with the answers that its commands get now."""
    stage = Stage()
    return "\n\n".join(_played(stage, block) for block in text.strip().split("\n\n")) + "\n"


def _played(stage: Stage, block: str) -> str:
    question, rule, _ = block.partition(f"\n{RULE}")
    commands = [line for line in question.splitlines() if not line.startswith("#")]
    if not commands:
        return block
    assert rule, f"no line {RULE!r} after: {question}"
    answers = [stage.play(line) for line in commands]
    return "\n".join([question, RULE, *answers])
