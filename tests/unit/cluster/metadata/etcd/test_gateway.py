"""What etcd's errors mean to Quiver."""

from __future__ import annotations

import pytest

from quiver.cluster.metadata.etcd.gateway import UNAVAILABLE, explained
from quiver.cluster.metadata.etcd.messages import Failure
from quiver.errors import MetadataUnavailable


@pytest.mark.parametrize("text", ["etcdserver: no leader", "etcdserver: request timed out"])
def test_an_etcd_without_a_leader_is_unavailable(text: str) -> None:
    error = explained(Failure(code=UNAVAILABLE, message=text))
    assert isinstance(error, MetadataUnavailable)
    assert text in error.message
