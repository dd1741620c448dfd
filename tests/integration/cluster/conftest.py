from __future__ import annotations

from collections.abc import Iterator

import pytest

from quiver.config import Web
from tests.integration.cluster.nodes import Cluster


@pytest.fixture(autouse=True)
def healed(request: pytest.FixtureRequest) -> Iterator[None]:
    """Whatever a test killed is there again for the next."""
    yield
    if "three" in request.fixturenames:
        request.getfixturevalue("three").heal()


@pytest.fixture(scope="session")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster that all tests share: each has topics of its own."""
    web = Web(webhook_targets="127.0.0.0/8")
    cluster = Cluster(tmp_path_factory.mktemp("three"), web=web)
    try:
        cluster.start()
        cluster.wait_complete()
        yield cluster
    finally:
        cluster.close()
