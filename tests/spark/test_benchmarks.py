"""Spark's benchmarks run and report; how fast anything is, no test asks."""

from __future__ import annotations

import os

import pytest
from benchmarks.harness.bench import Bench, scratch_folder
from benchmarks.harness.machine import this_machine
from benchmarks.spark import spark_on_a_topic


def test_a_quick_run_produces_rows_and_leaves_nothing_behind(
    spark, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with scratch_folder() as folder:
        bench = Bench(this_machine(folder), quick=True)
    rows = spark_on_a_topic(bench)
    assert len(rows) == 6
    assert all(row.value > 0 for row in rows)
    assert os.listdir(tmp_path) == []
