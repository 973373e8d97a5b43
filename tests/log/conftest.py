"""One disk a test, its threads ended afterwards; or either disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.log.disk_bench import Bench, Real, Simulated
from tests.log.helpers import FailingDisk


@pytest.fixture
def disk() -> Iterator[FailingDisk]:
    """A real disk that can be told to fail."""
    made = FailingDisk()
    yield made
    made.write_error = made.sync_error = made.bytes_left = None
    made.close()


@pytest.fixture(params=["real", "simulated"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    """Either disk."""
    made: Bench
    if request.param == "real":
        with pytest.MonkeyPatch.context() as monkeypatch:
            made = Real(tmp_path, monkeypatch)
            yield made
            made.close()
    else:
        made = Simulated()
        yield made
        made.close()
