"""Secrets stay secret: everything that a node and a client say and store is searched for them."""

from __future__ import annotations

import contextlib
import logging
import traceback
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog

from quiver import AsyncClient, protocol
from quiver.client.transport.access import Access
from quiver.config import Security
from quiver.edge.auth.credentials import Credentials
from quiver.errors import QuiverError
from tests.integration.access_matrix.native_cases import CASES, Case
from tests.integration.edge_node import Running, edge_test, running


@edge_test
async def test_a_token_is_in_no_log_line_error_metric_or_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    said: list[Any] = []
    before = structlog.get_config()
    structlog.configure(processors=[_keeper(said)], wrapper_class=structlog.BoundLogger)
    secrets: list[str] = []
    try:
        async with running(tmp_path, security=Security(authentication=True)) as run:
            admin = (tmp_path / "data" / "admin.token").read_text().strip()
            secrets.append(admin)
            async with AsyncClient(f"quiver://{run.address}", token=admin) as client:
                info, text = await client.create_token("a", ["consume:a.*"])
                assert text is not None
                secrets.append(text)
                said += [repr(info), await client.list_tokens(), repr(client), vars(client)]
                await client.revoke_token((await client.create_token("b", ["admin:*"]))[0].id)
                said.append((await client.describe_node()).counters)
            wrong = text[:-1] + ("0" if text[-1] != "0" else "1")
            secrets.append(wrong)
            for shown in (text, wrong, "nonsense-secret"):
                for case in CASES:
                    said.append(await _asked(run, shown, case))
                said += await _errors(str(run.address), shown)
            said.append(run.node.services.metrics.values())
            said += [repr(Credentials(token=text)), repr(Access(token=text))]
            said += [repr(protocol.Hello(versions=[1], token=text))]
            said += [repr(protocol.TokenCreated(info=info, token=text))]
    finally:
        structlog.configure(**before)
    said += [caplog.text, *capfd.readouterr()]
    stored = b"".join(
        file.read_bytes()
        for file in sorted((tmp_path / "data").rglob("*"))
        if file.is_file() and file.name != "admin.token"
    )
    told = repr(said)
    assert "audit" in told, "the lines are there to be searched"
    for secret in [*(one.rpartition("_")[2] for one in secrets), "nonsense-secret"]:
        assert secret not in told
        assert secret.encode() not in stored
        with contextlib.suppress(ValueError):
            assert bytes.fromhex(secret) not in stored


def _keeper(said: list[Any]) -> Any:
    def keep(_logger: Any, _method: str, event: Any) -> Any:
        said.append(dict(event))
        raise structlog.DropEvent

    return keep


async def _asked(run: Running, token: str, case: Case) -> Any:
    """The answer to a request on a connection of its own."""
    peer = await run.peer(greet=False)
    try:
        await peer.greet(token)
        return await peer.answer(peer.request(case.ask("x"), case.body))
    except QuiverError as error:
        return error, error.details
    finally:
        await peer.close()


async def _errors(address: str, token: str) -> list[str]:
    """What a program that does nothing about errors would print."""
    told = []
    async with AsyncClient(f"quiver://{address}", token=token, timeout="2s") as client:
        for attempt in (client.delete_topic("x"), client.list_tokens(), client.publish("x", b"")):
            try:
                await attempt
            except QuiverError as error:
                told += [
                    str(error),
                    repr(error.details),
                    "".join(traceback.format_exception(error)),
                ]
    return told


def test_a_frame_with_a_broken_hello_does_not_repeat_its_token() -> None:
    header = msgspec.msgpack.encode(
        {"call": "hello", "id": 1, "versions": "x", "token": "qv_secret"}
    )
    with pytest.raises(protocol.BadRequest) as caught:
        protocol.decode_request(memoryview(header))
    assert "qv_secret" not in repr(caught.value.reply) + str(caught.value)
