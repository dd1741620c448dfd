"""What a forwarder tells of itself."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from quiver.metrics import NodeMetrics
from quiver.metrics.forwarder_metrics import ForwarderMetrics


def test_a_forwarder_tells_its_name_requests_and_what_it_passed_on() -> None:
    counted = NodeMetrics()
    counted.forwarded_bytes.labels("to_clients").inc(10)
    metrics = ForwarderMetrics("edge-1", counted)
    metrics.count("publish")
    metrics.count("publish")
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(metrics.text().decode())
        for sample in family.samples
    }
    assert samples["quiver_requests_total", "publish"] == 2
    assert samples["quiver_forwarded_bytes_total", "to_clients"] == 10
    assert any(name[:2] == ("quiver_build_info", "edge-1") for name in samples)
