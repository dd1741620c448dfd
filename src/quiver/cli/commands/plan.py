"""``quiver plan``: compute the nodes, partitions and disks for a workload, from a measurement."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from quiver.cli.plan.measurement import DEFAULT_FILE, Measurement, load
from quiver.cli.plan.workload import Workload, rate_per_s
from quiver.cli.support.output import Json, print_json, print_line, print_table
from quiver.errors import InvalidSetting
from quiver.model.topic import Compression
from quiver.model.units import seconds, size_bytes

if TYPE_CHECKING:
    from quiver.cli.plan.sample import StoredSample


Rate = Annotated[
    str,
    typer.Option(
        "--rate",
        metavar="RATE",
        help="Messages per second, as in 100000, or per day, as in 1e9/d.",
    ),
]
Size = Annotated[
    str | None,
    typer.Option(
        "--size",
        metavar="SIZE",
        help="Payload size, as in 1KB. Default: the mean of the sample.",
    ),
]
Retention = Annotated[
    str,
    typer.Option("--retention", metavar="TIME", help="How long messages are kept, as in 7d."),
]
Replicas = Annotated[int, typer.Option("--replicas", help="Replicas of each partition.")]
Subscriptions = Annotated[
    int,
    typer.Option("--subscriptions", help="Number of subscriptions that receive every message."),
]
Consumers = Annotated[
    int, typer.Option("--consumers", help="Number of consumers in the largest group.")
]
Peak = Annotated[float, typer.Option("--peak", help="Peak rate divided by the average rate.")]
SampleFile = Annotated[
    str | None,
    typer.Option(
        "--sample",
        metavar="FILE",
        help="File with sample messages, one on each line, to measure compression with.",
    ),
]
PlannedCompression = Annotated[
    Compression, typer.Option("--compression", help="Compression to plan with; needs --sample.")
]
Batch = Annotated[
    int,
    typer.Option("--batch", min=1, max=100_000, help="Number of sample messages in each batch."),
]
Utilisation = Annotated[
    float,
    typer.Option("--utilisation", help="Highest utilisation of a node at the peak, 0.05 to 0.95."),
]
NodeDisk = Annotated[
    str | None,
    typer.Option("--node-disk", metavar="SIZE", help="Disk size of a node, as in 4TB."),
]
NodeNetwork = Annotated[
    str,
    typer.Option(
        "--node-network",
        metavar="SIZE",
        help="Network bandwidth of a node in bytes per second, each way.",
    ),
]
RoundTrip = Annotated[
    str,
    typer.Option(
        "--round-trip",
        metavar="TIME",
        help="Network round trip between two nodes, as in 500us.",
    ),
]
MeasurementFile = Annotated[
    str,
    typer.Option("--measurement", metavar="FILE", help="File written by quiver bench --save."),
]


def plan(
    rate: Rate,
    size: Size = None,
    retention: Retention = "7d",
    replicas: Replicas = 3,
    subscriptions: Subscriptions = 1,
    consumers: Consumers = 1,
    peak: Peak = 1,
    sample: SampleFile = None,
    compression: PlannedCompression = Compression.ZSTD,
    batch: Batch = 500,
    utilisation: Utilisation = 0.6,
    node_disk: NodeDisk = None,
    node_network: NodeNetwork = "1.25GB",
    round_trip: RoundTrip = "500us",
    measurement: MeasurementFile = DEFAULT_FILE,
    json: Json = False,
) -> None:
    """Compute the nodes, partitions and disks that a workload needs, and its first bottleneck."""
    measured = load(measurement)
    stored = None if sample is None else _stored_sample(sample, batch)
    if size is not None:
        size_of_one: float = size_bytes(size)
    elif stored is not None:
        size_of_one = stored.mean_bytes
    else:
        raise InvalidSetting(
            "the message size is missing: give --size, or --sample with sample messages"
        )
    workload = Workload(
        rate_per_s=rate_per_s(rate),
        peak=peak,
        size_bytes=size_of_one,
        retention_s=seconds(retention),
        replicas=replicas,
        subscriptions=subscriptions,
        consumers=consumers,
        packed=None if stored is None else stored.packed(compression),
        utilisation_max=utilisation,
        node_disk_bytes=None if node_disk is None else size_bytes(node_disk),
        node_network_bytes_per_s=size_bytes(node_network),
        round_trip_ms=seconds(round_trip) * 1000,
    )
    _print(workload, measured, stored, None if stored is None else compression, json=json)


def _stored_sample(sample: str, batch: int) -> StoredSample:
    from quiver.cli.plan.sample import measure_sample  # noqa: PLC0415 - it loads pyarrow

    return measure_sample(sample, batch)


def _print(
    workload: Workload,
    measured: Measurement,
    stored: StoredSample | None,
    compression: Compression | None,
    *,
    json: bool,
) -> None:
    from quiver.cli.plan import report  # noqa: PLC0415 - not for help
    from quiver.cli.plan.capacity import plan_for  # noqa: PLC0415 - as above

    planned = plan_for(workload, measured)
    words = {
        "arithmetic": report.arithmetic(workload, measured, planned),
        "cost drivers": report.cost_drivers(workload, planned),
        "breaks first": report.breaks_first(planned),
        "assumed": report.assumptions(workload, measured, compression),
    }
    if stored is not None:
        words["arithmetic"].insert(2, _sample_text(stored))
    if json:
        print_json(
            {
                "workload": workload,
                "plan": planned,
                "breaks_first": {
                    "resource": planned.first_to_break.resource,
                    "at_per_s": planned.breaks_at_per_s,
                },
                "sample": stored,
                "text": words,
            }
        )
        return
    print_table(("PLAN", "FOR"), report.rows(workload, planned))
    for name, lines in words.items():
        print_line("")
        print_line(name)
        for line in lines:
            print_line(f"  {line}")


def _sample_text(stored: StoredSample) -> str:
    packed = ", ".join(
        f"{name} {size / stored.payload_bytes:.3f}" for name, size in stored.stored_bytes.items()
    )
    return (
        f"sample: {stored.messages:,} messages of {stored.mean_bytes:,.0f} bytes; "
        f"stored bytes for a byte of payload: {packed}"
    )
