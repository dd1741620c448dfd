"""Every error a user of Quiver can meet.

Each class has a stable ``code`` that travels over every edge, and says whether the same call may
succeed if it is simply made again. Facts a program may want are in ``details``.

    QuiverError
    ├── InvalidRequest
    │   ├── InvalidSetting
    │   ├── InvalidBatch
    │   └── MessageTooLarge
    ├── LogError
    │   ├── FolderInUse
    │   ├── OffsetOutOfRange
    │   ├── CorruptLog
    │   ├── UnsupportedFormat
    │   ├── LogFailed
    │   └── LogClosed
    └── MetadataError
        ├── MetadataConflict
        ├── LeaseLost
        ├── WatchCompacted
        └── MetadataUnavailable
"""

from __future__ import annotations

from typing import Any, ClassVar


class QuiverError(Exception):
    """Something went wrong in Quiver."""

    code: ClassVar[str] = "error"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str | None = None, **details: Any) -> None:
        self.message = message or (self.__doc__ or "").strip()
        self.details = details
        super().__init__(self.message)


class InvalidRequest(QuiverError):
    """The request is not valid."""

    code = "invalid_request"


class InvalidSetting(InvalidRequest):
    """A setting is outside its bounds or not understood."""

    code = "invalid_setting"


class InvalidBatch(InvalidRequest):
    """The bytes are not a message batch."""

    code = "invalid_batch"


class MessageTooLarge(InvalidRequest):
    """A message or batch is larger than the topic allows."""

    code = "message_too_large"


class LogError(QuiverError):
    """The log could not do what was asked."""

    code = "log_error"


class FolderInUse(LogError):
    """Another process has this data folder open."""

    code = "folder_in_use"


class OffsetOutOfRange(LogError):
    """The offset is not in the log; details name the first offset still there and the next one."""

    code = "offset_out_of_range"


class CorruptLog(LogError):
    """Stored bytes do not match their checksum; details name the file and the position."""

    code = "corrupt_log"


class UnsupportedFormat(LogError):
    """The file was written by a newer version of Quiver."""

    code = "unsupported_format"


class LogFailed(LogError):
    """A write or sync failed: the log takes no appends until it is opened again."""

    code = "log_failed"


class LogClosed(LogError):
    """The log is closed."""

    code = "log_closed"


class MetadataError(QuiverError):
    """The metadata store could not do what was asked."""

    code = "metadata_error"


class MetadataConflict(MetadataError):
    """A key is not at the revision the commit expects: read it again and decide anew."""

    code = "metadata_conflict"


class LeaseLost(MetadataError):
    """The lease has ended and the keys under it are gone: grant a new one and put them again."""

    code = "lease_lost"


class WatchCompacted(MetadataError):
    """Changes after that revision are forgotten: list again, and watch from the listing's."""

    code = "watch_compacted"


class MetadataUnavailable(MetadataError):
    """The metadata store did not answer; a change may or may not have been made."""

    code = "metadata_unavailable"
    retryable = True
