"""Which requests a page of another site may have sent."""

from __future__ import annotations

import pytest

from quiver.config import Address, NodeConfig, Security, Web
from quiver.edge.http.web_access import WebAccess, access_of
from quiver.errors import AccessRefused


def fields(**given: str) -> dict[bytes, bytes]:
    return {name.replace("_", "-").encode(): value.encode() for name, value in given.items()}


def is_refused(access: WebAccess, scheme: str = "http", **given: str) -> bool:
    try:
        access.check(fields(**given), scheme)
    except AccessRefused:
        return True
    return False


@pytest.mark.parametrize(
    ("host", "refused"),
    [
        ("localhost:7400", False),
        ("LOCALHOST", False),
        ("a.localhost:1", False),
        ("127.0.0.1:7400", False),
        ("127.1.2.3", False),
        ("[::1]:7400", False),
        ("10.0.0.7:7400", False),
        ("node.internal", False),
        ("queue.example.com:80", False),
        ("evil.example.com:7400", True),
        ("localhost.evil.com", True),
        ("127.0.0.1.evil.com", True),
        ("", True),
        ("evil-localhost", True),
    ],
)
def test_without_authentication_only_its_own_names_are_served(host: str, refused: bool) -> None:
    config = NodeConfig(
        http=Address("127.0.0.1", 0),
        advertise="node.internal:7401",
        web=Web(hosts="queue.example.com"),
    )
    access = access_of(config)
    assert is_refused(access, host=host) is refused
    assert is_refused(access, host=host) is refused
    assert not is_refused(access_of(NodeConfig(security=Security(authentication=True))), host=host)


def test_every_name_is_served_if_that_was_asked_for() -> None:
    access = access_of(NodeConfig(web=Web(hosts="*")))
    assert not is_refused(access, host="anything.example.com")
    assert is_refused(access, host="a.example.com", origin="http://b.example.com")


def test_a_request_without_a_host_comes_from_no_browser() -> None:
    assert not is_refused(access_of(NodeConfig()))


@pytest.mark.parametrize(
    ("site", "refused"),
    [("cross-site", True), ("same-site", True), ("same-origin", False), ("none", False)],
)
def test_a_browser_says_for_which_site_a_request_is(site: str, refused: bool) -> None:
    assert is_refused(WebAccess(), host="localhost", sec_fetch_site=site) is refused
    allowed = WebAccess(["https://app.example.com"])
    assert is_refused(allowed, host="localhost", sec_fetch_site=site) is refused
    given = {"host": "localhost", "sec_fetch_site": site}
    assert not is_refused(allowed, origin="https://app.example.com", **given)
    assert not is_refused(WebAccess(["*"]), **given)


@pytest.mark.parametrize("origin", ["http://localhost:7400", "https://queue.example.com"])
def test_the_consoles_own_origin_is_known_also_behind_a_proxy(origin: str) -> None:
    access = access_of(NodeConfig(web=Web(hosts="queue.example.com")))
    assert not is_refused(access, host="localhost:7400", origin=origin)
    assert not is_refused(access, "ws", host="localhost:7400", origin=origin)
    assert is_refused(access, host="localhost:7400", origin="https://evil.example.com")
    assert is_refused(access, host="localhost:7400", origin="null")
    assert is_refused(access, host="localhost:7400", origin="https://queue.example.com:8080")


def test_another_port_of_the_same_machine_is_another_site() -> None:
    access = access_of(NodeConfig(http=Address("127.0.0.1", 7400)))
    assert not is_refused(access, host="127.0.0.1:7400", origin="http://127.0.0.1:7400")
    assert is_refused(access, host="127.0.0.1:7400", origin="http://127.0.0.1:8080")
    assert is_refused(access, host="127.0.0.1:7400", origin="http://127.0.0.1")


@pytest.mark.parametrize(
    ("given", "refused"),
    [
        ({"user_agent": "curl/8.0"}, False),
        ({}, False),
        ({"user_agent": "Mozilla/5.0"}, True),
        ({"user_agent": "Mozilla/5.0", "sec_fetch_site": "same-origin"}, False),
        ({"user_agent": "Mozilla/5.0", "sec_fetch_site": "none"}, False),
        ({"user_agent": "Mozilla/5.0", "origin": "https://app.example.com"}, False),
    ],
)
def test_a_get_that_takes_messages_is_refused_to_browsers_of_unknown_sites(
    given: dict[str, str], refused: bool
) -> None:
    if refused:
        with pytest.raises(AccessRefused, match="POST"):
            WebAccess().check_receive(fields(**given))
    else:
        WebAccess().check_receive(fields(**given))
