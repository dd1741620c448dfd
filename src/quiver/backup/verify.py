"""Reads every object of a backup and checks it against the manifest."""

from __future__ import annotations

from collections.abc import Callable

from quiver.backup.manifest import Chunk, Manifest
from quiver.backup.place import BackupPlace
from quiver.errors import CorruptBackup, CorruptLog
from quiver.model.envelope import entries_in


def verify(
    place: BackupPlace, manifest: Manifest, on_bytes: Callable[[int], object] = lambda _: None
) -> list[str]:
    """What is wrong with a backup, one line for each object; nothing if all is well."""
    problems = []
    for topic in manifest.topics:
        for index, part in enumerate(topic.partitions):
            next_offset = part.start_offset
            for chunk in part.chunks:
                if chunk.base_offset != next_offset:
                    problems.append(f"{chunk.name} does not follow on offset {next_offset:,}")
                next_offset = chunk.next_offset
            if next_offset != part.next_offset:
                where = f"partition {index} of {topic.info.name!r}"
                problems.append(f"{where} ends at {next_offset:,}, not {part.next_offset:,}")
    for one in manifest.objects:
        try:
            data = place.get(one)
            on_bytes(len(data))
            if isinstance(one, Chunk):
                _check_entries(one, data)
        except CorruptBackup as error:
            problems.append(error.message)
    return problems


def _check_entries(chunk: Chunk, data: bytes) -> None:
    try:
        entries = entries_in(data)
    except CorruptLog as error:
        raise CorruptBackup(f"{chunk.name}: {error.message}", object=chunk.name) from error
    next_offset = chunk.base_offset
    for entry in entries:
        if entry.base_offset != next_offset:
            raise CorruptBackup(f"{chunk.name} has a gap at offset {next_offset:,}")
        next_offset = entry.next_offset
    if next_offset != chunk.next_offset:
        raise CorruptBackup(f"{chunk.name} ends at offset {next_offset:,}", object=chunk.name)
