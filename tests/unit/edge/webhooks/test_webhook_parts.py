"""The pace of pushes, their signature, and where they may go."""

from __future__ import annotations

import asyncio
import socket

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiver.edge.webhooks.guarded import GuardedResolver, guarded_session
from quiver.edge.webhooks.pace import PAUSE_S_MAX, Pace
from quiver.edge.webhooks.signature import TOLERANCE_S, is_genuine, sign
from quiver.edge.webhooks.targets import Targets
from quiver.errors import InvalidSetting
from quiver.model.subscription import Push


class TestPace:
    def test_it_begins_with_one_request_at_a_time(self) -> None:
        pace = Pace(8, slow_s=1)
        assert pace.room(0, under_way=0) == 1
        assert pace.room(0, under_way=1) == 0

    def test_it_grows_while_answers_are_quick_and_never_past_its_limit(self) -> None:
        pace = Pace(4, slow_s=1)
        for _ in range(100):
            pace.succeeded(0.1)
        assert pace.window == 4
        assert pace.room(0, under_way=1) == 3
        assert pace.room(0, under_way=4) == 0

    def test_a_slow_answer_halves_it_without_a_pause(self) -> None:
        pace = Pace(8, slow_s=1)
        for _ in range(100):
            pace.succeeded(0.1)
        pace.succeeded(2)
        assert pace.window == 4
        assert pace.wait_s(0) is None

    def test_failures_pause_for_longer_and_longer_up_to_a_bound(self) -> None:
        pace, now, pauses = Pace(8, slow_s=1), 0.0, []
        for _ in range(12):
            pace.failed(now)
            pause = pace.wait_s(now)
            assert pause is not None
            pauses.append(pause)
            now += pause
        assert pauses == sorted(pauses)
        assert pauses[-1] == PAUSE_S_MAX

    def test_after_a_failure_one_request_tries_again_before_others(self) -> None:
        pace = Pace(8, slow_s=1)
        for _ in range(100):
            pace.succeeded(0.1)
        pace.failed(0)
        assert pace.room(100, under_way=0) == 1
        assert pace.room(100, under_way=1) == 0
        pace.succeeded(0.1)
        assert pace.room(100, under_way=1) > 0

    def test_an_endpoint_may_ask_for_a_longer_pause(self) -> None:
        pace = Pace(8, slow_s=1)
        pace.failed(0, retry_after_s=30)
        assert pace.wait_s(0) == 30

    @given(st.lists(st.one_of(st.floats(0, 5), st.none()), max_size=60), st.integers(1, 64))
    def test_the_window_stays_within_its_bounds(
        self, answers: list[float | None], limit: int
    ) -> None:
        pace, now = Pace(limit, slow_s=1), 0.0
        for answer in answers:
            pace.failed(now) if answer is None else pace.succeeded(answer)
            assert 1 <= pace.window <= limit
            now += pace.wait_s(now) or 0
            assert pace.room(now, under_way=0) > 0


class TestSignature:
    def test_a_genuine_push_is_recognised(self) -> None:
        assert is_genuine(b"secret", sign(b"secret", 1000, b"body"), b"body", 1010)

    @pytest.mark.parametrize(
        ("secret", "body", "now"),
        [(b"other", b"body", 1000), (b"secret", b"tampered", 1000), (b"secret", b"body", 9999)],
    )
    def test_another_secret_body_or_time_is_not(self, secret: bytes, body: bytes, now: int) -> None:
        assert now == 1000 or now > 1000 + TOLERANCE_S
        assert not is_genuine(secret, sign(b"secret", 1000, b"body"), body, now)

    @pytest.mark.parametrize("header", ["", "t=", "v1=abc", "t=x,v1=y", "t=1000", "nonsense"])
    def test_a_header_that_is_none_is_not(self, header: str) -> None:
        assert not is_genuine(b"secret", header, b"body", 1000)


class TestTargets:
    @pytest.mark.parametrize(
        ("listed", "url"),
        [
            ("hooks.example.com", "https://hooks.example.com/a"),
            ("*.example.com", "https://a.b.example.com:8443/"),
            ("a.example, HOOKS.example.com", "http://hooks.EXAMPLE.com/"),
            ("10.1.0.0/16", "http://10.1.2.3/"),
            ("127.0.0.1", "http://127.0.0.1:9/"),
            ("::1", "http://[::1]/"),
        ],
    )
    def test_what_is_listed_is_allowed(self, listed: str, url: str) -> None:
        Targets(listed).require(url)
        with pytest.raises(InvalidSetting):
            Targets("other.example.com").require(url)

    @pytest.mark.parametrize(
        ("listed", "url"),
        [
            ("", "https://hooks.example.com/"),
            ("hooks.example.com", "https://example.com/"),
            ("*.example.com", "https://example.com.evil.org/"),
            ("*.example.com", "https://evilexample.com/"),
            ("hooks.example.com", "http://127.0.0.1/"),
            ("hooks.example.com", "http://8.8.8.8/"),
            ("*", "http://169.254.169.254/latest/meta-data"),
            ("*", "http://[::1]/"),
            ("*", "http://[::ffff:127.0.0.1]/"),
            ("10.1.0.0/16", "http://10.2.0.1/"),
            ("*", "http://127.1/"),
            ("*", "http://2130706433/"),
            ("*", "http://0/"),
            ("*", "http://0177.0.0.1/"),
            ("*", "http://0x7f.1/"),
            ("*", "http://0x7f000001/"),
            ("*", "http://127.0.0.1./"),
            ("*", "http://1.2.3.4.5/"),
            ("*", "http://a..b/"),
            ("*", "http://-a.example/"),
            ("*", "http://127.0.0.1%2e/"),
            ("127.0.0.0/8", "http://127.1/"),
            ("*", "http://[64:ff9b::7f00:1]/"),
            ("*", "http://[::127.0.0.1]/"),
        ],
    )
    def test_what_is_not_listed_is_refused(self, listed: str, url: str) -> None:
        with pytest.raises(InvalidSetting):
            Targets(listed).require(url)

    @pytest.mark.parametrize(
        "address",
        [
            "127.0.0.1",
            "10.0.0.1",
            "192.168.1.1",
            "172.16.0.1",
            "169.254.169.254",
            "0.0.0.0",
            "224.0.0.1",
            "100.64.0.1",
            "::1",
            "::",
            "fe80::1",
            "fc00::1",
            "ff02::1",
            "::ffff:10.0.0.1",
            "64:ff9b::10.0.0.1",
            "64:ff9b:1::10.0.0.1",
            "2002:a00:1::1",
            "2002:7f00:1::",
            "::10.0.0.1",
            "::127.0.0.1",
            "fec0::1",
            "2001:0:a00:1::1",
            "100::1",
            "4000::1",
            "127.1",
            "2130706433",
        ],
    )
    def test_a_listed_host_may_not_be_inside_the_network(self, address: str) -> None:
        assert not Targets("*").may_reach(address)

    @pytest.mark.parametrize("address", ["64:ff9b::8.8.8.8", "2002:808:808::1", "2606:4700::1111"])
    def test_a_public_address_may_be_reached_however_it_is_written(self, address: str) -> None:
        assert Targets("*").may_reach(address)

    @pytest.mark.parametrize(
        ("listed", "address"),
        [
            ("10.0.0.0/8", "64:ff9b::10.0.0.1"),
            ("fec0::/10", "fec0::1"),
            ("64:ff9b:1::/48", "64:ff9b:1::1"),
        ],
    )
    def test_a_listed_network_also_counts_for_addresses_that_are_embedded(
        self, listed: str, address: str
    ) -> None:
        assert Targets(listed).may_reach(address)

    @pytest.mark.parametrize("host", ["127.0.0.1", "127.1", "2130706433"])
    def test_an_address_that_is_not_resolved_is_looked_at_when_it_is_connected_to(
        self, host: str
    ) -> None:
        async def post(port: int) -> None:
            async with guarded_session(Targets("*")) as web, asyncio.timeout(10):
                await web.post(f"http://{host}:{port}/")

        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(0)
            with pytest.raises(aiohttp.ClientError):
                asyncio.run(post(server.getsockname()[1]))
            with pytest.raises(BlockingIOError):
                server.accept()

    def test_a_listed_network_may_be_reached(self) -> None:
        assert Targets("*, 10.0.0.0/8").may_reach("10.0.0.1")
        assert Targets("*").may_reach("8.8.8.8")

    def test_a_name_that_resolves_to_the_inside_is_not_connected_to(self) -> None:
        async def resolve(listed: str) -> list[str]:
            resolver = GuardedResolver(Targets(listed))
            try:
                return [
                    one["host"] for one in await resolver.resolve("localhost", 80, socket.AF_INET)
                ]
            finally:
                await resolver.close()

        with pytest.raises(OSError, match="does not allow the address of localhost"):
            asyncio.run(resolve("localhost"))
        assert asyncio.run(resolve("localhost, 127.0.0.0/8")) == ["127.0.0.1"]


@pytest.mark.parametrize(
    "settings",
    [
        {"url": "ftp://a.example/"},
        {"url": "a.example"},
        {"url": "http://user:password@a.example/"},
        {"url": "http://a.example/ b"},
        {"url": "http://a.example/\r\nX: y"},
        {"url": "http:///path"},
        {"url": "http://a.example/" + "x" * 2000},
        {"url": "http://a.example/", "batch": 0},
        {"url": "http://a.example/", "concurrency": 65},
        {"url": "http://a.example/", "timeout": "1h"},
        {"url": "http://a.example/", "secret": "../../etc/passwd"},
    ],
)
def test_a_push_that_makes_no_sense_is_refused(settings: dict[str, object]) -> None:
    with pytest.raises(InvalidSetting):
        Push(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("url", ["http://[", "http://[::1/hook", "http://a]b/"])
def test_a_url_that_is_none_is_refused_as_a_setting(url: str) -> None:
    with pytest.raises(InvalidSetting, match=r"push\.url must be a URL"):
        Targets("*").require(url)
