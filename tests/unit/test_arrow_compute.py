from __future__ import annotations

import subprocess
import sys

import pyarrow as pa
import pyarrow.compute
import pytest

from quiver import arrow_compute as compute


def test_a_function_is_that_of_arrow_and_is_found_once() -> None:
    assert compute.equal is pyarrow.compute.equal
    assert "equal" in vars(compute)
    assert compute.max(pa.array([1, 3, 2])).as_py() == 3


def test_a_function_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_function"):
        compute.no_such_function  # noqa: B018


@pytest.mark.process
def test_clients_and_filters_are_loaded_without_arrows_functions() -> None:
    program = (
        "import sys; from quiver import Client; from quiver.model.filter import filter; "
        "sys.exit('pyarrow.compute' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
