"""What tests of replicas on real disks share."""

from __future__ import annotations

import pytest

from strandline.replica import partition_set


@pytest.fixture
def logs_made_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition that a test makes is there at once, however busy the machine is: what is appended to it in the same
    turn finds its log (rule B26 makes only as many as a turn has time for)."""
    monkeypatch.setattr(partition_set, "MAKING_MS", 60_000.0)
