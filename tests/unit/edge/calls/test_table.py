"""The table of calls: one row for each request, and rows that do not contradict themselves."""

from __future__ import annotations

import typing

import pytest

from quiver import protocol
from quiver.edge.calls.call import Call, Turn
from quiver.edge.calls.table import CALLS, table_of

REQUESTS = typing.get_args(protocol.AnyRequest)
ROWS = pytest.mark.parametrize("row", CALLS.values(), ids=lambda row: row.request.__name__)


def test_each_request_has_one_row_and_there_are_no_others() -> None:
    assert len(set(REQUESTS)) == len(REQUESTS)
    assert set(CALLS) == set(REQUESTS)
    assert all(row.request is request for request, row in CALLS.items())


def test_two_rows_for_one_request_are_refused() -> None:
    with pytest.raises(ValueError, match="two rows for Ping"):
        table_of([*CALLS.values(), CALLS[protocol.Ping]])


@ROWS
def test_a_row_says_how_answers_are_merged_if_several_nodes_answer(row: Call) -> None:
    assert (row.merge is not None) == row.runs.is_several


@ROWS
def test_a_call_of_several_nodes_may_leave_the_node_that_was_asked(row: Call) -> None:
    assert not (row.runs.is_here and row.runs.is_several)


@ROWS
def test_what_is_audited_is_carried_through(row: Call) -> None:
    assert not row.is_audited or (not row.only_waits and row.turn is Turn.CALL)


def test_these_calls_only_wait_and_may_be_abandoned() -> None:
    waiting = {request for request, row in CALLS.items() if row.only_waits}
    assert waiting == {
        protocol.Fetch,
        protocol.FetchLog,
        protocol.Receive,
        protocol.AwaitReady,
        protocol.AskPeer,
    }


def test_these_calls_are_not_in_turn_with_the_others_of_a_session() -> None:
    turns = {turn: {one for one, row in CALLS.items() if row.turn is turn} for turn in Turn}
    assert turns[Turn.PUBLISH] == {protocol.Publish}
    assert turns[Turn.AT_ONCE] == {protocol.Ping, protocol.Abandon}
    settle = {protocol.Ack, protocol.Nack, protocol.Reject, protocol.Extend, protocol.Return}
    transactions = {
        protocol.BeginTransactions,
        protocol.JoinTransaction,
        protocol.DescribeTransaction,
        protocol.ResolveTransactions,
        protocol.CloseTransactions,
    }
    settle |= {protocol.Hold, protocol.EndTransaction}
    assert turns[Turn.AFTER] == {protocol.EndTransactionAfter}
    wait = {protocol.Fetch, protocol.FetchLog, protocol.AwaitReady, protocol.AskPeer}
    assert turns[Turn.EAGER] == {protocol.Progress, protocol.Receive, *settle}
    assert turns[Turn.OWN] == {
        protocol.Copy,
        protocol.Consume,
        protocol.RestoreEntries,
        protocol.FetchDeliveryState,
        *wait,
        *transactions,
    }


@pytest.mark.parametrize(
    ("request_", "seconds"),
    [
        (protocol.ListTopics(), 30.0),
        (protocol.Publish(topic="t", partition=0), 30.0),
        (protocol.Publish(topic="t", partition=0, timeout_ms=0), 0.001),
        (protocol.Publish(topic="t", partition=0, timeout_ms=10**9), 300.0),
        (protocol.Fetch(topic="t", partition=0, offset=0, wait_ms=5000), 35.0),
        (protocol.Receive(subscription="s", wait_ms=-1), 30.0),
        (protocol.Receive(subscription="s", wait_ms=10**9), 60.0),
        (protocol.AwaitReady(subscription="s", wait_ms=2000), 32.0),
        (protocol.AskPeer(question=b""), 90.0),
    ],
)
def test_a_request_has_so_much_time(request_: protocol.AnyRequest, seconds: float) -> None:
    assert CALLS[type(request_)].timeout_s(request_) == seconds
