"""The tokens in the metadata store, and the principals they stand for.

A token is shown once, to its creator; the store has its hash. All records are in memory, so
authentication needs no I/O. A watch keeps them up to date: a revocation by another node takes effect
within a second.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Sequence
from contextlib import aclosing
from typing import NamedTuple

import msgspec
import structlog

from quiver.aio import cancel_and_wait
from quiver.cluster.metadata.store import Delete, Entry, Expect, MetadataStore, Put
from quiver.edge.auth.permissions import parse_grants
from quiver.edge.auth.principal import Principal
from quiver.edge.auth.token_text import (
    ID_BYTES,
    SECRET_BYTES,
    hashed,
    is_secret_of,
    token_parts,
    token_text,
)
from quiver.errors import (
    InvalidSetting,
    MetadataConflict,
    MetadataError,
    QuotaExceeded,
    TokenNotFound,
)
from quiver.model.clock import Clock
from quiver.protocol import TokenCopy, TokenInfo

TOKENS = "tokens/"
FIRST = "first-token"
TOKENS_MAX = 10_000
EXPIRES_S_MAX = 100 * 365 * 86_400
HASH_BYTES = 32
_KEPT_US = 30 * 86_400 * 1_000_000
"""How long a token that counts no more stays in listings."""
_RETRY_S = 0.5
_NAME = re.compile(r"[A-Za-z0-9_.:@/-]{1,100}")

logger = structlog.get_logger()


class TokenRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What the metadata store holds of a token; without a hash, of a certificate's name."""

    id: str
    name: str
    grants: list[str]
    created_us: int
    hash: bytes | None = None
    expires_us: int | None = None
    revoked_us: int | None = None

    def is_over(self, now_us: int) -> bool:
        return self.revoked_us is not None or (
            self.expires_us is not None and self.expires_us <= now_us
        )

    def info(self) -> TokenInfo:
        return TokenInfo(
            id=self.id,
            name=self.name,
            grants=self.grants,
            created_us=self.created_us,
            expires_us=self.expires_us,
            revoked_us=self.revoked_us,
            is_certificate=self.hash is None,
        )


class Draft(NamedTuple):
    """A token that was thought of: its record, and what its owner is to show."""

    record: TokenRecord
    text: str

    def __repr__(self) -> str:
        return f"Draft({self.record.id})"


class TokenStore:
    """``load`` it first; ``watch`` keeps it up to date until ``close``."""

    def __init__(self, store: MetadataStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._records: dict[str, TokenRecord] = {}
        self._principals: dict[str, Principal] = {}
        self._revision = 0
        self._watching: asyncio.Task[None] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether no token was ever made that is still remembered."""
        return not self._records

    async def load(self) -> None:
        listing = await self._store.list(TOKENS)
        found = {
            entry.key.removeprefix(TOKENS): _decoder.decode(entry.value)
            for entry in listing.entries
        }
        for gone in self._records.keys() - found.keys():
            self._forget(gone)
        for record in found.values():
            self._keep(record)
        self._revision = listing.revision

    # ------------------------------------------------------------------ who somebody is

    def by_token(self, text: str) -> Principal | None:
        """Whom the token stands for; ``None`` if it is wrong, expired or revoked."""
        parts = token_parts(text)
        if parts is None:
            return None
        record = self._records.get(parts.id)
        if not is_secret_of(parts.secret, record.hash if record else None) or record is None:
            return None
        return self._principal(record)

    def by_certificate(self, names: list[str]) -> Principal | None:
        """Whom a verified certificate with these names stands for."""
        for name in names:
            for record in self._records.values():
                if record.hash is None and record.name == name:
                    principal = self._principal(record)
                    if principal is not None:
                        return principal
        return None

    def _principal(self, record: TokenRecord) -> Principal | None:
        if record.is_over(self._clock.time_us()):
            return None
        known = self._principals.get(record.id)
        if known is None:
            known = self._principals[record.id] = Principal(
                record.name,
                parse_grants(record.grants),
                token_id=record.id,
                expires_us=record.expires_us,
            )
        return known

    # ------------------------------------------------------------------ making and ending

    async def create(
        self,
        name: str,
        grants: list[str],
        *,
        expires_s: float | None = None,
        is_certificate: bool = False,
    ) -> tuple[TokenInfo, str | None]:
        """Make a token: what is known of it, and the token itself, which nobody is shown again."""
        draft = self.draft(name, grants, expires_s=expires_s, is_certificate=is_certificate)
        await self.keep(draft)
        return draft.record.info(), draft.text or None

    def draft(
        self,
        name: str,
        grants: list[str],
        *,
        expires_s: float | None = None,
        is_certificate: bool = False,
    ) -> Draft:
        """A token that counts once it is kept."""
        if not _NAME.fullmatch(name):
            raise InvalidSetting(
                f"{name[:80]!r} is not a token name; "
                "use 1 to 100 letters, digits, '.', '_', ':', '@', '/' or '-'",
                setting="name",
            )
        parsed = parse_grants(grants)
        if expires_s is not None and not 1 <= expires_s <= EXPIRES_S_MAX:
            raise InvalidSetting("a token must expire after 1 s to 100 years", setting="expires_s")
        now_us, token_id = self._clock.time_us(), secrets.token_hex(ID_BYTES)
        secret = secrets.token_bytes(SECRET_BYTES)
        record = TokenRecord(
            id=token_id,
            name=name,
            grants=[str(grant) for grant in parsed],
            created_us=now_us,
            hash=None if is_certificate else hashed(secret),
            expires_us=None if expires_s is None else now_us + round(expires_s * 1e6),
        )
        return Draft(record, "" if is_certificate else token_text(token_id, secret))

    async def keep(self, draft: Draft) -> None:
        """From now on the token counts."""
        await self._tidy(draft.record.created_us)
        key = TOKENS + draft.record.id
        await self._store.commit([Expect(key, 0)], [Put(key, _encode(draft.record))])
        self._keep(draft.record)

    async def keep_first(self, draft: Draft) -> bool:
        """The same, unless there is a token by now: ``False`` if another node was quicker."""
        first = await self._store.get(FIRST)
        await self.load()
        if self._records:
            return False
        key = TOKENS + draft.record.id
        try:
            await self._store.commit(
                [Expect(FIRST, first.revision if first else 0)],
                [Put(FIRST, draft.record.id.encode()), Put(key, _encode(draft.record))],
            )
        except MetadataConflict:
            await self.load()
            return False
        self._keep(draft.record)
        return True

    async def revoke(self, token_id: str) -> TokenInfo:
        """From now on the token counts no more; no error if it did not already."""
        while True:
            entry = await self._store.get(TOKENS + token_id) if _is_id(token_id) else None
            if entry is None:
                raise TokenNotFound(f"there is no token with id {token_id[:80]!r}")
            record = _decoder.decode(entry.value)
            if record.revoked_us is None:
                record = msgspec.structs.replace(record, revoked_us=self._clock.time_us())
                try:
                    await self._store.commit(
                        [Expect(entry.key, entry.revision)], [Put(entry.key, _encode(record))]
                    )
                except MetadataConflict:
                    continue  # each time somebody else got further: another revoked or removed it
            self._keep(record)
            return record.info()

    def list(self) -> list[TokenInfo]:
        records = sorted(self._records.values(), key=lambda one: (one.name, one.created_us))
        return [record.info() for record in records]

    def export(self) -> Sequence[TokenCopy]:
        """Every token that counts, with its hash: for a backup."""
        now_us = self._clock.time_us()
        records = sorted(self._records.values(), key=lambda one: one.id)
        return [
            TokenCopy(info=one.info(), hash=one.hash) for one in records if not one.is_over(now_us)
        ]

    async def restore(self, record: TokenRecord) -> bool:
        """Let a token of a backup count; ``False`` if it is here, revoked or not: that one stays."""
        if not _is_id(record.id) or not _NAME.fullmatch(record.name):
            raise InvalidSetting(f"{record.id[:80]!r} is not a token of a backup", setting="id")
        if record.hash is not None and len(record.hash) != HASH_BYTES:
            raise InvalidSetting("the hash of a token has 32 bytes", setting="hash")
        parse_grants(record.grants)
        if record.id in self._records:
            return False
        await self._tidy(self._clock.time_us())
        key = TOKENS + record.id
        try:
            await self._store.commit([Expect(key, 0)], [Put(key, _encode(record))])
        except MetadataConflict:
            return False  # another node was quicker
        self._keep(record)
        return True

    async def _tidy(self, now_us: int) -> None:
        """Remove what has counted no more for long; refuse to hold more than the bound."""
        for record in list(self._records.values()):
            ended_us = record.revoked_us or record.expires_us
            if ended_us is not None and ended_us + _KEPT_US < now_us:
                await self._store.commit([], [Delete(TOKENS + record.id)])
                self._forget(record.id)
        if len(self._records) >= TOKENS_MAX:
            raise QuotaExceeded(
                f"there are {TOKENS_MAX:,} tokens, the most allowed: revoke some", quota="tokens"
            )

    # ------------------------------------------------------------------ staying up to date

    def start(self) -> None:
        self._watching = asyncio.create_task(self._watch())

    async def close(self) -> None:
        await cancel_and_wait(self._watching)

    async def _watch(self) -> None:
        while True:
            try:
                await self._follow()
                return  # the store is closed
            except MetadataError as error:
                logger.warning("tokens may be out of date", reason=error.message)
                await self._clock.sleep(_RETRY_S)

    async def _follow(self) -> None:
        await self.load()
        async with aclosing(self._store.watch(TOKENS, self._revision)) as batches:
            async for batch in batches:
                for change in batch.changes:
                    self._changed(change)
                self._revision = batch.revision

    def _changed(self, change: Entry | Delete) -> None:
        if isinstance(change, Delete):
            self._forget(change.key.removeprefix(TOKENS))
        else:
            self._keep(_decoder.decode(change.value))

    def _keep(self, record: TokenRecord) -> None:
        self._records[record.id] = record
        if record.revoked_us is not None:
            self._end(record.id)

    def _forget(self, token_id: str) -> None:
        self._records.pop(token_id, None)
        self._end(token_id)

    def _end(self, token_id: str) -> None:
        principal = self._principals.pop(token_id, None)
        if principal is not None:
            principal.end()


def _is_id(token_id: str) -> bool:
    return re.fullmatch(r"[0-9a-f]{1,64}", token_id) is not None


_encode = msgspec.msgpack.Encoder().encode
_decoder: msgspec.msgpack.Decoder[TokenRecord] = msgspec.msgpack.Decoder(TokenRecord)
