"""What a client is told of an error."""

from __future__ import annotations

import pytest

from quiver.errors import CorruptLog, InvalidRequest, LogFailed, MetadataError, QuiverError
from quiver.protocol import failure

FOLDER = "/srv/my data/quiver"


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            CorruptLog(
                f"{FOLDER}/topics/7/0/0001.log is damaged at 9",
                file=f"{FOLDER}/topics/7/0/0001.log",
            ),
            "topics/7/0/0001.log is damaged at 9",
        ),
        (LogFailed("/srv/quiver/topics/7/0 could not be opened"), "topics/7/0 could not be opened"),
        (LogFailed("./data/topics/7/0 could not be opened"), "topics/7/0 could not be opened"),
        (LogFailed("data/topics/7/0/1.log: full"), "topics/7/0/1.log: full"),
        (
            MetadataError("/srv/quiver/metadata.db cannot be used: locked"),
            "metadata.db cannot be used: locked",
        ),
        (
            InvalidRequest("delete it with DELETE /queues/emails"),
            "delete it with DELETE /queues/emails",
        ),
    ],
)
def test_an_error_does_not_show_where_the_node_keeps_its_files(
    error: QuiverError, told: str
) -> None:
    failed = failure(1, error)
    assert failed.message == told
    assert "/srv" not in str(failed.details)
