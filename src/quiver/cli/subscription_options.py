"""The flags that set something about a queue or subscription, defined once, and their settings.

A flag that is not given changes nothing. Bounds are checked where the settings are defined, in
``quiver.model.subscription``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from quiver.cli.option_values import MISSING, given, read
from quiver.model.subscription import Guarantee, Ordering
from quiver.model.units import seconds

OrderingFlag = Annotated[
    Ordering | None, typer.Option("--ordering", help="What is delivered in order.")
]
GuaranteeFlag = Annotated[
    Guarantee | None, typer.Option("--guarantee", help="How often a message is delivered.")
]
VisibilityFlag = Annotated[
    str | None,
    typer.Option(
        "--visibility", metavar="TIME", help="How long a consumer holds a message, as in 30s."
    ),
]
MaxDeliveriesFlag = Annotated[
    int | None,
    typer.Option(
        "--max-deliveries", min=0, help="After so many a message is a dead letter; 0: never."
    ),
]
DeadLetterFlag = Annotated[
    str | None,
    typer.Option(
        "--dead-letter", metavar="TOPIC", help="Where dead letters go; none: to NAME.dlq."
    ),
]
BackoffMinFlag = Annotated[
    str | None,
    typer.Option("--backoff-min", metavar="TIME", help="The rest before the first retry."),
]
BackoffMaxFlag = Annotated[
    str | None, typer.Option("--backoff-max", metavar="TIME", help="The longest such rest.")
]
BackoffFactorFlag = Annotated[
    float | None, typer.Option("--backoff-factor", help="How much longer each rest is.")
]
AgeingFlag = Annotated[
    str | None,
    typer.Option(
        "--ageing", metavar="TIME", help="Waiting so long is worth one priority; 0: nothing is."
    ),
]
FairnessFlag = Annotated[
    str | None,
    typer.Option("--fairness", metavar="COLUMN", help="Take turns by this: key, or headers.NAME."),
]
SessionTimeoutFlag = Annotated[
    str | None,
    typer.Option(
        "--session-timeout", metavar="TIME", help="A member silent for so long has left its group."
    ),
]
FilterFlag = Annotated[
    str | None,
    typer.Option(
        "--filter",
        metavar="FILTER",
        help="Deliver only what matches, as in priority >= 5; or none.",
    ),
]


def settings_from(values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by name, as in ``SubscriptionSettings``, from a command's parameters by name.

    Only what was given is in it, of ``backoff`` too.
    """
    backoff = given(
        min=read(values, "backoff_min", seconds),
        max=read(values, "backoff_max", seconds),
        factor=read(values, "backoff_factor", float),
    )
    return given(
        ordering=read(values, "ordering", Ordering),
        guarantee=read(values, "guarantee", Guarantee),
        visibility=read(values, "visibility", seconds),
        max_deliveries=read(values, "max_deliveries", int),
        dead_letter=read(values, "dead_letter", str, clears=True),
        backoff=backoff or MISSING,
        ageing=read(values, "ageing", seconds),
        fairness=read(values, "fairness", str),
        session_timeout=read(values, "session_timeout", seconds),
        filter=read(values, "filter", str, clears=True),
    )
