"""Who asks: with no credentials that count, with grants for other things, and with each grant alone."""

from __future__ import annotations

from collections.abc import Sequence

from tests.integration.access_matrix.grants import exact
from tests.integration.access_matrix.world import SINGLES, World

EVERYTHING = ("publish:*", "consume:*", "admin:*")
OTHER_SCOPE = ("publish:other.*", "consume:other.*", "admin:other.*")
UNKNOWN = ("no token", "wrong", "expired", "revoked")


async def unknown_token(world: World, kind: str) -> str | None:
    """What somebody shows who is not let in."""
    if kind == "no token":
        return None
    if kind == "wrong":
        right = await world.token(*EVERYTHING)
        return right[:-64] + "0" * 64
    return await world.token(*EVERYTHING, is_over=kind)


def grant_sets(needs: Sequence[str]) -> list[tuple[str, ...]]:
    """Grants to try a call with: all that it needs, all but one, each kind alone, and others."""
    needed = exact(needs)
    but_one = [tuple(needed[:place] + needed[place + 1 :]) for place in range(len(needed))]
    sets = [OTHER_SCOPE, *but_one, *((one,) for one in SINGLES), tuple(needed), EVERYTHING]
    return [grants for grants in dict.fromkeys(sets) if grants]
