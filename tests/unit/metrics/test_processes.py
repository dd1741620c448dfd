"""Metrics of several processes as one text."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from quiver.metrics.processes import merged, with_process

TEXT = b"""# HELP quiver_requests_total Requests.
# TYPE quiver_requests_total counter
quiver_requests_total{call="publish {x} 1"} 3.0
quiver_requests_total{call="a"} 4
# HELP quiver_topics Topics.
# TYPE quiver_topics gauge
quiver_topics 7
"""


def test_each_sample_gets_the_number_of_its_process() -> None:
    assert with_process(TEXT, 2).decode().splitlines()[2::4] == [
        'quiver_requests_total{process="2",call="publish {x} 1"} 3.0',
        'quiver_topics{process="2"} 7',
    ]


def test_a_merged_text_describes_each_metric_once_and_has_every_sample() -> None:
    text = merged(with_process(TEXT, process) for process in range(3)).decode()
    families = {one.name: one for one in text_string_to_metric_families(text)}
    assert text.count("# TYPE quiver_topics gauge") == 1
    assert [sample.labels for sample in families["quiver_topics"].samples] == [
        {"process": "0"},
        {"process": "1"},
        {"process": "2"},
    ]
    assert sum(one.value for one in families["quiver_requests"].samples) == 21


def test_a_metric_that_one_process_lacks_is_there_all_the_same() -> None:
    other = b"# HELP a A.\n# TYPE a gauge\na 1\n"
    assert merged([TEXT, other]) == TEXT + other
