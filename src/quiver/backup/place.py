"""Where backups are: a folder, or an object store that ``pyarrow.fs`` reaches (S3, GCS, Azure).

    PLACE/backups/ID.json                    the manifest of a backup, written last
    PLACE/objects/TOPIC/PARTITION/...        entries, shared by all backups that have them
    PLACE/objects/state/ID/...               the state of subscriptions

An object appears whole or not at all. Everything blocks: call it in a thread.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256

import pyarrow as pa
import pyarrow.fs as pafs

from quiver.backup.manifest import Manifest, StoredObject, decode_manifest, encode_manifest
from quiver.errors import BackupError, BackupNotFound, CorruptBackup

_BACKUPS = "backups"
_SUFFIX = ".json"
_UNFINISHED = ".unfinished"


class BackupPlace:
    """Use ``open_place``."""

    def __init__(self, filesystem: pafs.FileSystem, path: str, uri: str) -> None:
        self.uri = uri
        self._filesystem = filesystem
        self._path = path.rstrip("/")
        self._is_local = isinstance(filesystem, pafs.LocalFileSystem)

    # ------------------------------------------------------------------ objects

    def put(self, name: str, data: bytes) -> StoredObject:
        """Write an object. It is durable on return."""
        path = f"{self._path}/{name}"
        with _explained(f"{name} cannot be written to {self.uri}"):
            if self._is_local:
                _write_file(path, data)
            else:
                with self._filesystem.open_output_stream(path) as stream:
                    stream.write(data)
        return StoredObject(name=name, bytes=len(data), sha256=sha256(data).hexdigest())

    def get(self, wanted: StoredObject) -> bytes:
        """An object; ``CorruptBackup`` if it is missing or is not what was written."""
        data = self._read(wanted.name)
        if data is None:
            raise CorruptBackup(f"{wanted.name} is missing", object=wanted.name)
        if len(data) != wanted.bytes or sha256(data).hexdigest() != wanted.sha256:
            raise CorruptBackup(f"{wanted.name} does not match its checksum", object=wanted.name)
        return data

    def _read(self, name: str) -> bytes | None:
        with _explained(f"{name} cannot be read from {self.uri}"):
            try:
                with self._filesystem.open_input_stream(f"{self._path}/{name}") as stream:
                    return bytes(stream.read())
            except FileNotFoundError:
                return None

    # ------------------------------------------------------------------ manifests

    def add(self, manifest: Manifest) -> None:
        """From now on the backup exists."""
        self.put(f"{_BACKUPS}/{manifest.id}{_SUFFIX}", encode_manifest(manifest))

    def ids(self) -> list[str]:
        """The backups that are here, oldest first."""
        selector = pafs.FileSelector(f"{self._path}/{_BACKUPS}", allow_not_found=True)
        with _explained(f"{self.uri} cannot be listed"):
            names = [one.base_name for one in self._filesystem.get_file_info(selector)]
        return sorted(name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX))

    def manifest(self, backup: str | None = None) -> Manifest:
        """The backup with this id; by default the newest."""
        if backup is None:
            known = self.ids()
            if not known:
                raise BackupNotFound(f"there is no backup at {self.uri}")
            backup = known[-1]
        name = f"{_BACKUPS}/{backup}{_SUFFIX}"
        data = self._read(name)
        if data is None:
            raise BackupNotFound(f"there is no backup {backup[:80]!r} at {self.uri}")
        return decode_manifest(data, name)


def open_place(where: str) -> BackupPlace:
    """A folder, or a URI such as ``s3://bucket/folder``."""
    with _explained(f"{where} cannot be opened"):
        if "://" not in where:
            return BackupPlace(pafs.LocalFileSystem(), os.path.abspath(where), where)
        filesystem, path = pafs.FileSystem.from_uri(where)
        return BackupPlace(filesystem, path, where.partition("?")[0])


def _write_file(path: str, data: bytes) -> None:
    """Write a file so that it is there whole, or not at all, whatever happens."""
    folder = os.path.dirname(path)
    os.makedirs(folder, exist_ok=True)
    with open(path + _UNFINISHED, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(path + _UNFINISHED, path)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _explained(what: str) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise BackupError(f"{what}: {error}") from error
