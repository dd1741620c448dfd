"""Tokens: hashed at rest, shown once, over when they expire or are revoked, wherever that was done."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from quiver.cluster.metadata.sqlite import SqliteStore
from quiver.cluster.metadata.store import Delete
from quiver.edge.auth import token_text
from quiver.edge.auth.bootstrap_token import make_bootstrap_token
from quiver.edge.auth.token_text import is_secret_of, token_parts
from quiver.edge.auth.tokens import TOKENS, TokenStore
from quiver.errors import InvalidSetting, TokenNotFound
from quiver.testing.clock import ManualClock
from tests.aio import async_test
from tests.integration.edge_node import until


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[tuple[SqliteStore, TokenStore, ManualClock]]:
    clock = ManualClock()
    store = await SqliteStore.open(str(folder / "metadata.db"), clock)
    tokens = TokenStore(store, clock)
    await tokens.load()
    try:
        yield store, tokens, clock
    finally:
        await tokens.close()
        await store.close()


def secret_in(path: str) -> str:
    return Path(path).read_text().strip()


@async_test
async def test_a_token_stands_for_its_name(tmp_path: Path) -> None:
    async with opened(tmp_path) as (_, tokens, _):
        info, text = await tokens.create("billing", ["consume:billing"])
        assert text is not None
        principal = tokens.by_token(text)
        assert principal is not None
        assert (principal.name, principal.token_id) == ("billing", info.id)
        assert tokens.by_token(f" {text}\n") is principal  # as it comes out of a file


@async_test
async def test_the_store_has_no_secret(tmp_path: Path) -> None:
    async with opened(tmp_path) as (store, tokens, _):
        info, text = await tokens.create("billing", ["consume:billing"])
        parts = token_parts(text or "")
        assert parts is not None
        entry = await store.get(TOKENS + info.id)
        assert entry is not None
        for secret in (parts.secret, parts.secret.hex().encode()):
            assert secret not in entry.value
            assert secret not in repr(tokens.list()).encode()
    for file in sorted(tmp_path.glob("*")):  # noqa: ASYNC240 - nothing else goes on
        assert parts.secret not in file.read_bytes()
        assert parts.secret.hex().encode() not in file.read_bytes()


@pytest.mark.parametrize("position", range(3, 84, 7))
@async_test
async def test_a_token_with_another_character_is_nobodys(tmp_path: Path, position: int) -> None:
    async with opened(tmp_path) as (_, tokens, _):
        _, text = await tokens.create("billing", ["consume:billing"])
        assert text is not None
        other = "0" if text[position] != "0" else "1"
        assert tokens.by_token(text[:position] + other + text[position + 1 :]) is None


@pytest.mark.parametrize("text", ["", "qv_", "x" * 100_000, "qv_00_00", "Bearer x", "\ud800", "é"])
@async_test
async def test_what_is_not_written_like_a_token_is_nobodys(tmp_path: Path, text: str) -> None:
    async with opened(tmp_path) as (_, tokens, _):
        assert tokens.by_token(text) is None


def test_secrets_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    compare = token_text.hmac.compare_digest
    monkeypatch.setattr(
        token_text.hmac, "compare_digest", lambda a, b: compared.append(1) or compare(a, b)
    )
    assert is_secret_of(b"s", token_text.hashed(b"s"))
    assert not is_secret_of(b"s", token_text.hashed(b"t"))
    assert not is_secret_of(b"s", None)
    assert len(compared) == 3, "also where there is nothing to compare with"


@async_test
async def test_a_token_expires(tmp_path: Path) -> None:
    async with opened(tmp_path) as (_, tokens, clock):
        _, text = await tokens.create("a", ["publish:a"], expires_s=10)
        assert text is not None
        principal = tokens.by_token(text)
        assert principal is not None
        await clock.advance(9.9)
        assert not principal.is_over(clock.time_us())
        await clock.advance(0.1)
        assert principal.is_over(clock.time_us())
        assert tokens.by_token(text) is None


@async_test
async def test_a_revoked_token_is_over_for_sessions_that_are_open(tmp_path: Path) -> None:
    async with opened(tmp_path) as (_, tokens, clock):
        info, text = await tokens.create("a", ["publish:a"])
        assert text is not None
        principal = tokens.by_token(text)
        assert principal is not None
        await tokens.revoke(info.id)
        assert principal.is_over(clock.time_us())
        assert tokens.by_token(text) is None
        await tokens.revoke(info.id)
        assert [one.revoked_us is not None for one in tokens.list()] == [True]


@async_test
async def test_a_revocation_made_elsewhere_counts_here(tmp_path: Path) -> None:
    async with opened(tmp_path) as (store, tokens, clock):
        tokens.start()
        remote = TokenStore(store, clock)
        await remote.load()
        info, text = await remote.create("a", ["publish:a"])
        assert text is not None
        await until(lambda: tokens.by_token(text) is not None)
        principal = tokens.by_token(text)
        assert principal is not None
        await remote.revoke(info.id)
        await until(lambda: principal.has_ended)
        assert tokens.by_token(text) is None


@async_test
async def test_tokens_outlive_the_node_and_the_old_ones_are_tidied_away(tmp_path: Path) -> None:
    async with opened(tmp_path) as (store, tokens, clock):
        info, _ = await tokens.create("old", ["publish:a"], expires_s=1)
        _, text = await tokens.create("new", ["publish:a"])
        await clock.advance(31 * 86_400)
        await tokens.create("newer", ["publish:a"])
        again = TokenStore(store, clock)
        await again.load()
        assert [one.name for one in again.list()] == ["new", "newer"]
        assert await store.get(TOKENS + info.id) is None
        assert again.by_token(text or "") is not None


@async_test
async def test_a_certificate_stands_for_the_name_it_was_given_grants_for(tmp_path: Path) -> None:
    async with opened(tmp_path) as (_, tokens, _):
        info, text = await tokens.create("billing.example", ["consume:b"], is_certificate=True)
        assert text is None
        assert info.is_certificate
        found = tokens.by_certificate(["other", "billing.example"])
        assert found is not None
        assert found.name == "billing.example"
        assert tokens.by_certificate(["other"]) is None
        assert tokens.by_token(f"qv_{info.id}_{'0' * 64}") is None, "it has no secret"
        await tokens.revoke(info.id)
        assert tokens.by_certificate(["billing.example"]) is None


@async_test
async def test_a_token_made_for_a_name_does_not_let_a_certificate_in(tmp_path: Path) -> None:
    async with opened(tmp_path) as (_, tokens, _):
        await tokens.create("billing", ["consume:b"])
        assert tokens.by_certificate(["billing"]) is None


@pytest.mark.parametrize(
    ("name", "grants", "expires_s"),
    [
        *(
            ("", ["publish:a"], None),
            ("a b", ["publish:a"], None),
            ("a" * 101, ["publish:a"], None),
        ),
        *(("a", [], None), ("a", ["x"], None)),
        *(("a", ["publish:a"], seconds) for seconds in (0.0, -1.0, 1e12, float("nan"))),
    ],
)
@async_test
async def test_what_makes_no_token_is_refused(
    tmp_path: Path, name: str, grants: list[str], expires_s: float | None
) -> None:
    async with opened(tmp_path) as (_, tokens, _):
        with pytest.raises(InvalidSetting):
            await tokens.create(name, grants, expires_s=expires_s)
        assert tokens.is_empty


@pytest.mark.parametrize("token_id", ["", "0" * 16, "../x", "a/b", "x" * 5000, "\0"])
@async_test
async def test_what_is_not_there_cannot_be_revoked(tmp_path: Path, token_id: str) -> None:
    async with opened(tmp_path) as (_, tokens, _):
        with pytest.raises(TokenNotFound):
            await tokens.revoke(token_id)


@async_test
async def test_of_nodes_that_start_together_one_makes_the_first_token(tmp_path: Path) -> None:
    async with opened(tmp_path) as (store, one, clock):
        other = TokenStore(store, clock)
        await other.load()
        folders = [tmp_path / "one", tmp_path / "other"]
        for folder in folders:
            folder.mkdir()
        made = await asyncio.gather(
            *(
                make_bootstrap_token(tokens, str(folder))
                for tokens, folder in zip([one, other], folders, strict=True)
            )
        )
        [path] = [path for path in made if path is not None]
        assert [str(file) for folder in folders for file in folder.iterdir()] == [path]
        text = secret_in(path)
        assert one.by_token(text) is not None
        assert other.by_token(text) is not None


@async_test
async def test_the_first_token_is_made_anew_once_none_is_remembered(tmp_path: Path) -> None:
    async with opened(tmp_path) as (store, tokens, clock):
        assert await make_bootstrap_token(tokens, str(tmp_path)) is not None
        assert await make_bootstrap_token(tokens, str(tmp_path)) is None
        for token in tokens.list():
            await store.commit([], [Delete(TOKENS + token.id)])
        restarted = TokenStore(store, clock)
        await restarted.load()
        path = await make_bootstrap_token(restarted, str(tmp_path))
        assert path is not None
        assert restarted.by_token(secret_in(path)) is not None
