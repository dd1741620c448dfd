"""Mirrors over TLS and with tokens: what is refused is shown and alerted, and heals when it is corrected."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import quiver
from quiver.protocol import MirrorInfo
from tests.integration.certificates import Authority
from tests.integration.mirror.nodes import copied, messages
from tests.serving import Served, eventually, served

pytestmark = pytest.mark.process


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "certificates")


@pytest.fixture
def source(tmp_path: Path, authority: Authority) -> Iterator[Served]:
    with closed_node(tmp_path / "source", authority) as node:
        yield node


@contextmanager
def closed_node(folder: Path, authority: Authority) -> Iterator[Served]:
    """A node that wants TLS and a token, and trusts the authority."""
    certificate, key = authority.issue(folder.name, "127.0.0.1")
    with served(
        folder,
        "--authentication",
        QUIVER_SECURITY_TLS_CERTIFICATE=certificate,
        QUIVER_SECURITY_TLS_KEY=key,
        QUIVER_CA_FILE=authority.file,
    ) as node:
        yield node


@pytest.fixture
def there(source: Served, authority: Authority) -> Iterator[quiver.Client]:
    with administered(source, authority) as client:
        yield client


def administered(node: Served, authority: Authority, token: str | None = None) -> quiver.Client:
    """A client with this token, or with that of the node's administrator."""
    token = token or (node.data / "admin.token").read_text().strip()
    return quiver.Client(secure(node), token=token, tls=authority.trusting())


@pytest.fixture
def target(tmp_path: Path, authority: Authority) -> Iterator[Served]:
    """A node that trusts the authority of the source."""
    with served(
        tmp_path / "target", QUIVER_CA_FILE=authority.file, QUIVER_ALERTS_DEFAULTS="true"
    ) as node:
        yield node


@pytest.fixture
def here(target: Served) -> Iterator[quiver.Client]:
    with quiver.Client(target.url) as client:
        yield client


def secure(node: Served) -> str:
    return node.url.replace("quiver://", "quivers://")


def token_of(there: quiver.Client, *grants: str) -> tuple[str, str]:
    """A new token, and its id."""
    info, token = there.create_token("copy", list(grants))
    assert token is not None
    return token, info.id


def is_alerted(client: quiver.Client) -> bool:
    """Whether it is alerted that the mirror is broken."""
    return ("mirror-broken", "eu") in {(one.rule, one.subject) for one in client.alerts().firing}


def described(client: quiver.Client) -> MirrorInfo:
    return client.describe_mirror("eu")


def test_a_wrong_token_is_shown_and_alerted_and_the_right_one_heals_it(
    source: Served, there: quiver.Client, here: quiver.Client
) -> None:
    there.create_topic("orders", partitions=3)
    there.publish_many("orders", [b"%d" % i for i in range(30)])
    here.create_mirror("eu", secure(source), "orders", token="qv_wrong")
    eventually(lambda: described(here).state == "broken", "the mirror is broken")
    assert "token" in described(here).error
    assert "qv_wrong" not in described(here).error
    eventually(lambda: is_alerted(here), "an alert says so")
    right, _ = token_of(there, "consume:orders")
    here.alter_mirror("eu", token=right)
    eventually(copied(here, "eu", "orders"), "everything is copied")
    assert {payload for _, payload in messages(here, "orders")} == {b"%d" % i for i in range(30)}
    assert (described(here).state, described(here).error) == ("copying", "")
    eventually(lambda: not is_alerted(here), "the alert is over")


def test_a_token_that_is_revoked_breaks_the_mirror_until_it_has_another(
    source: Served, there: quiver.Client, here: quiver.Client
) -> None:
    there.create_topic("orders", partitions=3)
    first, number = token_of(there, "consume:orders")
    here.create_mirror("eu", secure(source), "orders", token=first)
    eventually(copied(here, "eu", "orders"), "everything is copied")
    there.revoke_token(number)
    eventually(lambda: described(here).state == "broken", "the mirror is broken")
    eventually(lambda: is_alerted(here), "an alert says so")
    there.publish("orders", b"later")
    second, _ = token_of(there, "consume:orders")
    here.alter_mirror("eu", token=second)
    eventually(lambda: len(messages(here, "orders")) == 1, "what came later is copied")
    eventually(lambda: not is_alerted(here), "the alert is over")


def test_a_topic_that_the_token_may_not_consume_is_named(
    source: Served, there: quiver.Client, here: quiver.Client
) -> None:
    there.create_topic("orders")
    there.create_topic("secret")
    token, _ = token_of(there, "consume:orders")
    here.create_mirror("eu", secure(source), ["orders", "secret"], token=token)
    eventually(copied(here, "eu", "orders"), "what is allowed is copied")
    (lacking,) = [one for one in described(here).topics if one.error]
    assert lacking.source == "secret"
    assert "the token may not consume it" in lacking.error
    assert {one.name for one in here.list_topics()} == {"orders"}


def test_a_source_whose_certificate_is_not_trusted_gets_no_token(
    tmp_path: Path, source: Served, there: quiver.Client
) -> None:
    there.create_topic("orders")
    token, _ = token_of(there, "consume:orders")
    other = Authority(tmp_path / "others")
    with (
        served(tmp_path / "wary", QUIVER_CA_FILE=other.file) as wary,
        quiver.Client(wary.url) as here,
    ):
        here.create_mirror("eu", secure(source), "orders", token=token)
        eventually(lambda: described(here).state == "broken", "the mirror is broken")
        assert "cannot be trusted" in described(here).error
        assert [one.name for one in here.list_topics()] == []


def test_a_promote_over_tls_fences_the_source(
    source: Served, there: quiver.Client, here: quiver.Client
) -> None:
    there.create_queue("orders")
    there.publish("orders", b"one")
    grants = "consume:orders*", "admin:orders*"
    token, _ = token_of(there, *grants)
    here.create_mirror("eu", secure(source), "orders*", token=token, with_subscriptions=True)
    eventually(copied(here, "eu", "orders"), "the queue is copied")
    eventually(copied(here, "eu", "orders.dlq"), "the dead letters are copied")
    promoted = here.promote_topics("orders*")
    assert [(one.is_fenced, one.is_complete, one.error) for one in promoted] == [
        (True, True, "")
    ] * 2
    assert [one.payload for one in here.receive("orders", wait=10)] == [b"one"]
    with pytest.raises(quiver.ReadOnlyTopic, match="was moved"):
        there.publish("orders", b"two")


def test_two_clusters_that_want_tokens_promote_and_fail_back(
    tmp_path: Path, authority: Authority, source: Served, there: quiver.Client
) -> None:
    with closed_node(tmp_path / "us", authority) as target, administered(target, authority) as here:
        there.create_queue("orders")
        there.publish_many("orders", [b"1", b"2"])
        token, _ = token_of(there, "consume:orders*", "admin:orders*")
        here.create_mirror("eu", secure(source), "orders*", token=token, with_subscriptions=True)
        eventually(copied(here, "eu", "orders"), "the queue is copied")
        eventually(copied(here, "eu", "orders.dlq"), "the dead letters are copied")
        assert all(one.is_complete for one in here.promote_topics("orders*"))
        here.publish("orders", b"3")

        reading, _ = token_of(here, "consume:orders*")
        there.create_mirror(
            "us",
            secure(target),
            "orders*",
            token=reading,
            with_subscriptions=True,
            failback=True,
        )
        eventually(copied(there, "us", "orders"), "the old source is a copy")
        eventually(copied(there, "us", "orders.dlq"), "its dead letters are one")
        (refused,) = there.promote_topics("orders.dlq")
        assert not refused.is_fenced
        assert "admin" in refused.error
        assert "orders.dlq" in refused.error
        fencing, _ = token_of(here, "consume:orders*", "admin:orders*")
        there.alter_mirror("us", token=fencing)
        eventually(lambda: there.describe_mirror("us").state == "copying", "it has another token")
        (done,) = there.promote_topics("orders")
        assert (done.is_fenced, done.is_complete, done.error) == (True, True, "")
        got = there.receive("orders", max_messages=10, wait=10)
        assert [one.payload for one in got] == [b"1", b"2", b"3"]
        with pytest.raises(quiver.ReadOnlyTopic, match="was moved"):
            here.publish("orders", b"4")


def test_who_may_not_administer_mirrors_or_promote_is_told_what_is_missing(
    source: Served, there: quiver.Client, authority: Authority
) -> None:
    there.create_topic("orders")
    token, _ = token_of(there, "admin:orders")
    with administered(source, authority, token) as client:
        with pytest.raises(quiver.PermissionDenied, match="no grant for admin on cluster"):
            client.create_mirror("us", "quiver://127.0.0.1:1", "orders")
        with pytest.raises(
            quiver.PermissionDenied, match="no grant for consume or admin on cluster"
        ):
            client.list_mirrors()
    token, _ = token_of(there, "consume:orders")
    with (
        administered(source, authority, token) as client,
        pytest.raises(quiver.PermissionDenied, match="admin"),
    ):
        client.promote_topics("orders")


def test_subscriptions_that_the_token_may_not_consume_from_are_counted(
    source: Served, there: quiver.Client, here: quiver.Client
) -> None:
    there.create_topic("orders")
    for name in ("report", "audit", "mail"):
        there.create_subscription(name, topics=["orders"])
    token, _ = token_of(there, "consume:orders", "consume:report")
    here.create_mirror("eu", secure(source), "orders", token=token, with_subscriptions=True)
    eventually(copied(here, "eu", "orders"), "what is allowed is copied")
    (topic,) = described(here).topics
    assert "may not consume from 2 of its subscriptions" in topic.error
    eventually(lambda: [one.name for one in here.list_subscriptions()] == ["report"], "copied")
