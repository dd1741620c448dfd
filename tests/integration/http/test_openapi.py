"""The OpenAPI document is complete and true: Schemathesis tries to show that it is not."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from quiver.edge.http.app import OPERATIONS
from quiver.edge.http.openapi import openapi_document
from quiver.edge.http.routes.description import description_of
from tests.serving import Served, environment, served

pytestmark = pytest.mark.process

DOCUMENT = json.loads(json.dumps(openapi_document((*OPERATIONS, *description_of(OPERATIONS)))))
ROOT = Path(__file__).parents[3]
HOOKS = "tests.integration.http.schemathesis_hooks"
EVERY = [
    (method, path, operation)
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
]
IDS = [f"{method} {path}" for method, path, _ in EVERY]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("openapi")) as node:
        for path, body in (
            ("/queues/emails", b"{}"),
            ("/topics/orders", b"{}"),
            ("/subscriptions/billing", b'{"topics": ["orders"]}'),
        ):
            request = urllib.request.Request(node.http + path, body, method="PUT")
            urllib.request.urlopen(request).close()
        yield node


@pytest.mark.long
@pytest.mark.timeout(600)
def test_schemathesis_finds_nothing(node: Served, tmp_path: Path) -> None:
    # A value may have the right form and still be refused: a topic that is not there, a filter
    # that is not understood. Every other check of Schemathesis is on.
    done = subprocess.run(
        [
            *(sys.executable, "-m", "schemathesis.cli", "run", f"{node.http}/openapi.json"),
            *("--exclude-checks", "positive_data_acceptance", "--no-color"),
            *("--phases", "examples,coverage,fuzzing", "--max-examples", "3", "--seed", "7"),
        ],
        cwd=tmp_path,
        env=environment(SCHEMATHESIS_HOOKS=HOOKS, PYTHONPATH=str(ROOT)),
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"Tested: {len(EVERY) - 1}" in done.stdout, "all but the document itself"


@pytest.mark.parametrize(("method", "path", "operation"), EVERY, ids=IDS)
def test_every_example_is_what_its_schema_says(
    method: str, path: str, operation: dict[str, Any]
) -> None:
    contents = [operation.get("requestBody", {}).get("content", {})]
    contents += [reply.get("content", {}) for reply in operation["responses"].values()]
    tried = 0
    for media in (media for content in contents for media in content.values()):
        for example in media.get("examples", {}).values():
            whole = {**media["schema"], "components": DOCUMENT["components"]}
            jsonschema_rs.validate(whole, example["value"])
            tried += 1
    assert tried


@pytest.mark.parametrize(("method", "path", "operation"), EVERY, ids=IDS)
def test_every_json_body_and_reply_has_an_example(
    method: str, path: str, operation: dict[str, Any]
) -> None:
    contents = [operation.get("requestBody", {}).get("content", {})]
    contents += [reply.get("content", {}) for reply in operation["responses"].values()]
    for content in contents:
        for media_type, media in content.items():
            if "json" in media_type and path != "/openapi.json":
                assert media["examples"]


def test_operations_have_ids_of_their_own() -> None:
    ids = [operation["operationId"] for _, _, operation in EVERY]
    assert len(set(ids)) == len(ids)


def test_the_page_needs_nothing_from_outside(node: Served) -> None:
    with urllib.request.urlopen(f"{node.http}/docs") as reply:
        page, policy = reply.read().decode(), reply.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe-inline" not in policy
    links = re.findall(r"(?:src|href|url\(|import)\s*=?\s*[\"']?([^\"'\s>)]+)", page)
    assert [link for link in links if "//" in link] == []


def test_the_node_serves_the_document(node: Served, tmp_path: Path) -> None:
    with urllib.request.urlopen(f"{node.http}/openapi.json") as reply:
        assert json.load(reply) == DOCUMENT
