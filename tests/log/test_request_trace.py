"""The stages of requests: who notes what, when it ends, what it may hold."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest

from strandline.cluster.node.http.trace import TracePage
from strandline.log.request_trace import STAGES, RequestTrace, stages_of, summary
from strandline.proto.ids import NodeId, TopicPartition
from tests.log.helpers import ManualClock

TP, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)
TWO, THREE = NodeId(2), NodeId(3)


@dataclass
class Log:
    """What a trace sees of one."""

    topic_partition: TopicPartition
    durable_offset: int


class Scene:
    """A trace and its clock, which moves a millisecond at a time."""

    def __init__(self, capacity: int = 100, duration_ms: float = 1_000.0) -> None:
        self.clock = ManualClock(0)
        self.ends = 0
        self.trace = RequestTrace(self.clock, capacity, duration_ms, self.end)

    def end(self) -> None:
        self.ends += 1

    def at(self, now_ms: int) -> RequestTrace:
        """The trace, at that time."""
        self.clock.now_ms = now_ms
        return self.trace


def test_a_request_at_its_leader() -> None:
    """Each stage from the instants that bound it; a follower's acknowledgement counts when it covers the request."""
    scene = Scene()
    scene.at(10).began(10)
    scene.at(11).appended(TP, 5)
    scene.at(13).sync_began([Log(TP, 0), Log(OTHER, 0)])
    scene.at(14).began(14)
    scene.at(15).appended(TP, 9)
    scene.at(17).sync_ended([Log(TP, 5)])
    scene.at(18).acked(TP, TWO, 4)
    scene.at(20).acked(TP, TWO, 5)
    scene.at(21).acked(TP, TWO, 9)
    scene.at(23).acked(TP, THREE, 5)
    scene.at(24).committed(TP, 5)
    scene.at(26).answered(TP)
    (traced,) = scene.trace.led
    assert stages_of(traced) == {
        "append": 1,
        "wait for sync": 2,
        "sync": 4,
        "replicas": 12,
        "commit": 13,
        "answer": 2,
        "total": 16,
    }
    assert list(stages_of(traced)) == sorted(stages_of(traced), key=["wait for sync", "sync", *STAGES].index)
    scene.at(30).sync_began([Log(TP, 5)])
    scene.at(33).sync_ended([Log(TP, 9)])
    scene.at(34).committed(TP, 9)
    scene.at(34).answered(TP)
    assert stages_of(scene.trace.led[1])["wait for sync"] == 15
    assert stages_of(scene.trace.led[1])["replicas"] == 6


def test_an_append_at_a_follower() -> None:
    """It begins when it is appended and ends with its sync."""
    scene = Scene()
    scene.at(10).followed_up(TP, 5)
    scene.at(11).followed_up(TP, 7)
    scene.at(12).sync_began([Log(TP, 0)])
    scene.at(13).followed_up(TP, 9)
    scene.at(15).sync_ended([Log(TP, 7)])
    assert [stages_of(traced) for traced in scene.trace.followed] == [
        {"wait for sync": 2, "sync": 3, "total": 5},
        {"wait for sync": 1, "sync": 3, "total": 4},
    ]
    assert scene.trace.led == []


@pytest.mark.parametrize(("capacity", "duration_ms", "kept"), [(3, 1_000.0, 3), (100, 25.0, 2)])
def test_it_ends_by_itself(capacity: int, duration_ms: float, kept: int) -> None:
    """When it holds as many as it may, or its time is over: told once, and nothing more is held, whoever goes on."""
    scene = Scene(capacity, duration_ms)
    for number in range(1, 10):
        scene.at(10 * number).appended(TP, number)
    assert scene.ends == 1
    assert scene.trace.ended
    scene.at(200).committed(TP, 100)
    scene.at(201).answered(TP)
    assert len(scene.trace.led) == kept
    scene.trace.end()
    assert scene.ends == 1


def test_a_summary_says_what_the_slow_ones_waited_for() -> None:
    """Percentiles of each stage, and the mean of each in the slowest hundredth of the whole requests."""
    scene = Scene(capacity=1_000, duration_ms=1e9)
    now_ms = 0
    for number in range(200):
        slow = 50 if number in (50, 150) else 0
        scene.at(now_ms).began(now_ms)
        scene.at(now_ms + 1).appended(TP, number + 1)
        scene.at(now_ms + 2 + slow).committed(TP, number + 1)
        scene.at(now_ms + 2 + slow).answered(TP)
        now_ms += 100
    told = summary(scene.trace.led)
    assert list(told) == ["append", "commit", "answer", "total"]
    assert told["commit"] == {"p50": 1, "p90": 1, "p99": 51, "max": 51, "slowest": 51}
    assert told["append"]["slowest"] == 1
    assert told["total"]["max"] == 52
    assert summary([]) == {}


def test_the_page_turns_it_on_and_off() -> None:
    """What is asked for is looked at; a new trace replaces the old one, whose end does not end the new one."""
    replicas = SimpleNamespace(trace=None)
    node: Any = SimpleNamespace(
        broker=SimpleNamespace(replicas=replicas), clock=ManualClock(0), describe=lambda: {"node_id": 1}
    )
    page = TracePage(cast("Any", node))
    assert page.page().status == 404
    for body in (
        b"",
        b"7",
        b'{"seconds": 0}',
        b'{"seconds": 601}',
        b'{"requests": 1.5}',
        b'{"requests": 100001}',
        b'{"x": 1}',
    ):
        assert page.command(body).status == 400, body
        assert replicas.trace is None
    assert page.command(b'{"seconds": 5, "requests": 10}').status == 200
    first = replicas.trace
    assert page.command(b"{}").status == 200
    assert replicas.trace is not first
    first.end()
    assert replicas.trace is not None
    assert page.page().status == 200
    assert replicas.trace is None
    node.broker = None
    assert page.command(b"{}").status == 409
