"""How long a lease or a delay that a consumer asks for lasts, as the protocol has it."""

from __future__ import annotations

from quiver.errors import InvalidRequest, InvalidSetting
from quiver.model.subscription import VISIBILITY_S_MAX
from quiver.model.units import Duration, duration_text, seconds


def lease_ms(name: str, duration: Duration) -> int:
    """Milliseconds. An error names the argument and its value as it was given."""
    try:
        value = seconds(duration)
    except InvalidSetting as error:
        raise InvalidSetting(f"{name}: {error.message}", setting=name) from None
    if not 0 <= value <= VISIBILITY_S_MAX:
        most = duration_text(VISIBILITY_S_MAX)
        raise InvalidRequest(f"{name} must be 0s to {most}, not {duration!r}", field=name)
    return round(value * 1000)
