"""Which etcd is taken, which is warned of, which is refused."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from quiver.cluster.metadata.etcd.versions import check_versions
from quiver.errors import MetadataError, MetadataUnavailable


@pytest.mark.parametrize("version", ["3.4.0", "3.4.37", "3.5.0", "3.5.1", "3.5.15"])
def test_a_version_known_to_be_bad_is_warned_of(version: str) -> None:
    with capture_logs() as lines:
        check_versions({"http://a": version})
    (line,) = lines
    assert (line["log_level"], line["version"], line["endpoint"]) == (
        "warning",
        version,
        "http://a",
    )


@pytest.mark.parametrize("version", ["3.4.38", "3.4.40", "3.5.16", "3.5.21", "3.6.0", "4.0.0"])
def test_a_sound_version_is_taken_without_a_word(version: str) -> None:
    with capture_logs() as lines:
        check_versions({"http://a": version})
    assert lines == []


@pytest.mark.parametrize("version", ["3.3.27", "2.3.8", "nonsense"])
def test_a_version_that_cannot_be_used_is_refused(version: str) -> None:
    with pytest.raises(MetadataError):
        check_versions({"http://a": "3.6.0", "http://b": version})


def test_no_version_at_all_is_an_etcd_that_is_away() -> None:
    with pytest.raises(MetadataUnavailable):
        check_versions({})
