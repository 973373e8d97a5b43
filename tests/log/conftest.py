"""One disk a test, its threads ended afterwards; or either disk."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.log.disk_bench import Bench, Real, Simulated
from tests.log.helpers import FailingDisk


@pytest.fixture(scope="module", autouse=True)
def _in_memory() -> Iterator[None]:
    """What a test wrote is read without a wait, also on a machine that drops it from the page cache at once; `ColdDisk`
    is for those that read what is cold."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.delattr(os, "RWF_NOWAIT", raising=False)
        yield


@pytest.fixture
def disk() -> Iterator[FailingDisk]:
    """A real disk that can be told to fail."""
    made = FailingDisk()
    yield made
    made.write_error = made.sync_error = made.bytes_left = None
    made.close()


@pytest.fixture(params=["compiled", "python", "simulated"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    """The real disk with either thread that syncs, or the simulator's."""
    made: Bench
    if request.param != "simulated":
        with pytest.MonkeyPatch.context() as monkeypatch:
            made = Real(tmp_path, monkeypatch, compiled_sync=request.param == "compiled")
            yield made
            made.close()
    else:
        made = Simulated()
        yield made
        made.close()
