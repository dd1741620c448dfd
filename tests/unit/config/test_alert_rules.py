"""Alert rules in a settings file: what is read, and how mistakes are told."""

from __future__ import annotations

from pathlib import Path

import pytest

from quiver.config import AlertRule, load_config
from quiver.errors import InvalidSetting


def read(folder: Path, text: str) -> tuple[AlertRule, ...]:
    path = folder / "quiver.toml"
    path.write_text(text)
    return load_config(path=str(path), environment={}).config.alert_rules


def mistakes(folder: Path, text: str) -> list[str]:
    with pytest.raises(InvalidSetting) as refused:
        read(folder, text)
    return [line.removeprefix(f"{folder}/") for line in refused.value.details["mistakes"]]


def test_rules_are_tables_with_limits_in_the_units_people_use(tmp_path: Path) -> None:
    rules = read(
        tmp_path,
        """
        [alerts.rules.orders-deep]
        watch = "depth"
        on = "orders.*"
        limit = 5000
        for_s = "2m"
        severity = "critical"

        [alerts.rules.old]
        watch = "oldest_age"
        limit = "10m"

        [alerts]
        defaults = false

        [alerts.rules.disk]
        watch = "disk_low"
        limit = "20GiB"
        """,
    )
    deep = AlertRule(
        name="orders-deep", watch="depth", on="orders.*", limit=5000, for_s=120, severity="critical"
    )
    assert rules[0] == deep
    assert [rule.limit for rule in rules[1:]] == [600, 20 << 30]


@pytest.mark.parametrize(
    ("lines", "mistake"),
    [
        ('watch = "depht"\nlimit = 1', "quiver.toml:2: alerts.rules.a: watch must be one of"),
        ('watch = "depth"', "quiver.toml:1: alerts.rules.a: limit is missing"),
        ("limit = 1", "quiver.toml:1: alerts.rules.a: watch is missing"),
        ('watch = "depth"\nlimit = -1', "quiver.toml:3: alerts.rules.a: limit must be between"),
        ('watch = "depth"\nlimit = "10m"', "quiver.toml:3: alerts.rules.a: limit must be a number"),
        ('watch = "oldest_age"\nlimit = "ten"', "quiver.toml:3: alerts.rules.a: "),
        ('watch = "depth"\nlimit = true', "quiver.toml:3: alerts.rules.a: limit must be a number"),
        (
            'watch = "error_rate"\nlimit = 5',
            "quiver.toml:1: alerts.rules.a: limit of error_rate must be a share",
        ),
        (
            'watch = "depth"\nlimit = 1\nlimti = 2',
            "quiver.toml:4: alerts.rules.a: there is no setting 'limti'",
        ),
        ('watch = "depth"\nlimit = 1\non = "a b"', "quiver.toml:4: alerts.rules.a: on cannot be"),
        ('watch = "depth"\nlimit = 1\nfor_s = "x"', "quiver.toml:4: alerts.rules.a: for_s"),
        (
            'watch = "depth"\nlimit = 1\nname = "b"',
            "quiver.toml:4: alerts.rules.a: there is no setting 'name'",
        ),
    ],
)
def test_a_mistake_is_refused_with_its_place(tmp_path: Path, lines: str, mistake: str) -> None:
    (found,) = mistakes(tmp_path, f"[alerts.rules.a]\n{lines}\n")
    assert found.startswith(mistake)


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    text = '[alerts.rules.a]\nwatch = "x"\nlimit = 1\n[alerts.rules."b b"]\nwatch = "depth"\nlimit = 1\n'
    found = mistakes(tmp_path, f'name = ""\n{text}')
    assert [line.split(": ")[0] for line in found] == [
        "quiver.toml:3",
        "quiver.toml:5",
        "quiver.toml:1",
    ]


@pytest.mark.parametrize(
    "text", ["alerts.rules = 5", "[alerts.rules]\na = 5", "[[alerts.rules]]\na = 5"]
)
def test_what_is_no_table_is_refused(tmp_path: Path, text: str) -> None:
    (found,) = mistakes(tmp_path, text)
    assert "rules are tables: write [alerts.rules.NAME]" in found
