"""The workload and its accounting: nothing is found where all is well, and each loss is."""

from __future__ import annotations

import msgspec
import pytest

from tests.chaos.accounting import findings
from tests.chaos.workload import Delivered, Seen, Workload, prepare
from tests.serving import eventually, served


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """A workload on one node, which is killed and comes back meanwhile."""
    folder = tmp_path_factory.mktemp("node")
    with served(folder) as node:
        address = node.ready["native"]
        prepare(node.url)
        with Workload(node.url) as workload:
            node.close()
            with served(folder, "--native", address):
                workload.goes_on()
                eventually(
                    lambda: any(read.values for read in workload.history.reads), "a reader has read"
                )
                return workload.finish()


@pytest.fixture
def seen(finished: Seen) -> Seen:
    """What was seen, to be tampered with."""
    return msgspec.json.decode(msgspec.json.encode(finished), type=Seen)


def test_a_node_that_is_killed_loses_nothing(finished: Seen) -> None:
    assert findings(finished) == []
    assert sum(send.outcome == "done" for send in finished.history.sends) >= 20
    assert any(one.acked is not None for one in finished.deliveries)
    assert any(read.values for read in finished.history.reads)


def test_a_confirmed_value_that_is_not_stored_is_found(seen: Seen) -> None:
    (partition, (copy,)), *_ = seen.history.copies.items()
    seen.history.copies[partition] = [msgspec.structs.replace(copy, values=copy.values[:-1])]
    assert any(one.startswith("confirmed but lost") for one in findings(seen))


def test_a_confirmed_value_that_nobody_was_given_is_found(seen: Seen) -> None:
    value = next(send.value for send in seen.history.sends if send.outcome == "done")
    seen.deliveries = [one for one in seen.deliveries if one.value != value]
    assert any(one.startswith(f"never delivered: {value} ") for one in findings(seen))


def test_a_delivery_after_a_confirmed_ack_is_found(seen: Seen) -> None:
    first = next(one for one in seen.deliveries if one.acked is not None)
    assert first.acked is not None
    seen.deliveries.append(Delivered(first.value, first.acked + 1))
    assert any(one.startswith("delivered after its ack") for one in findings(seen))


def test_a_delivery_of_what_nobody_sent_is_found(seen: Seen) -> None:
    seen.deliveries.append(Delivered("99.0", 0.0, 1.0))
    assert "delivered and never sent: 99.0" in findings(seen)
