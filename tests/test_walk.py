"""The walk of one record stays short: the files that see it from `producer.send` to `consumer.poll` (docs/walk.py)."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "docs"))
walk: Any = importlib.import_module("walk")


@pytest.fixture(scope="module")
def followed() -> Any:
    return walk.follow()


def test_a_record_passes_through_few_files(followed: Any) -> None:
    files = [stop.path for stop in followed.stops]
    assert len(files) <= walk.FILES_MAX, files


def test_a_file_is_entered_by_few_doors(followed: Any) -> None:
    more = {stop.path: list(stop.most_doors) for stop in followed.stops if len(stop.most_doors) > walk.DOORS}
    assert len(more) <= walk.FILES_WITH_MORE_DOORS_MAX, more


def test_the_walk_goes_from_the_producer_over_leader_and_followers_to_the_consumer(followed: Any) -> None:
    """What measures it sees: both ends, the log on both sides, and the rule by which the high watermark rises."""
    files = {stop.path: followed.places(stop) for stop in followed.stops}
    assert next(iter(files)) == "client/aio/producer.py"
    assert files["client/aio/consumer.py"] == ["client"]
    assert files["log/partition_log.py"] == ["leader", "follower"]
    assert files["replica/core.py"] == ["leader", "follower"]


def test_the_walk_is_the_same_again(followed: Any) -> None:
    assert walk.follow() == followed
