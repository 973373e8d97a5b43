"""One disk a test, its threads ended afterwards."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.log.helpers import FailingDisk


@pytest.fixture
def disk() -> Iterator[FailingDisk]:
    """A real disk that can be told to fail."""
    made = FailingDisk()
    yield made
    made.write_error = made.sync_error = made.bytes_left = None
    made.close()
