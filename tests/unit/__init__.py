import pytest

# A suite that test modules import is no test module itself: its assertions explain themselves too.
pytest.register_assert_rewrite("tests.unit.cluster.metadata.metadata_conformance")
