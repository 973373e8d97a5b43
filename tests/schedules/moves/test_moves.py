"""Schedules 149 to 151: what commands that move replicas must not do while brokers die and operators look."""

from __future__ import annotations

from typing import Any, cast

from strandline.client.admin import Admin
from strandline.client.types import ConfigResource
from strandline.proto.ids import TopicPartition
from strandline.tools.moves.layout import Plan
from strandline.tools.moves.planner import move_off
from strandline.tools.moves.running import DEAD_MS, Running, watched
from strandline.tools.moves.survey import survey
from strandline.tools.moves.throttle import Throttle, clear, left_over
from tests.schedules.helpers import schedule
from tests.schedules.moves.cluster import MovingCluster

T0 = TopicPartition("t", 0)


class Hand:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now_ms = 0.0

    def monotonic_ms(self) -> float:
        return self.now_ms


def begun(cluster: MovingCluster, plan: Plan, clock: Hand, throttle: Throttle | None = None) -> Running:
    """The first moves are under way."""
    running = Running(cast(Admin, cluster), plan, clock=cast(Any, clock), at_once=1, throttle=throttle)
    running.step()
    return running


@schedule(149, rule="B48: a move to a broker that is down is cancelled", mutant="a-move-to-a-dead-broker-goes-on")
def test_149_the_target_of_a_move_dies() -> None:
    """Redpanda #5330. Broker 4 dies in the middle of the copy. After a minute the partition has its replicas of before,
    and the command names it; the rest of the plan that goes elsewhere is carried out."""
    cluster, clock = MovingCluster(4, {"t": [(1, 2), (1, 3)]}), Hand()
    plan = move_off(survey(cast(Admin, cluster)), [1])
    targets = {move.tp: move.added for move in plan.moves}
    dead = targets[T0][0]
    running = begun(cluster, plan, clock)
    cluster.down.add(dead)
    progress = running.step()
    assert [wait.why[0] for wait in progress.waits if wait.tp == T0] == [
        f"broker {dead}, to which it moves, is down: start it, or cancel the move"
    ]
    for _ in range(6):
        cluster.arrive()
        clock.now_ms += DEAD_MS / 2
        progress = running.step()
    assert progress.is_over
    assert set(cluster.placed[T0].replicas) == {1, 2}
    assert f"its move was cancelled: broker {dead} has been down for a minute" in {left.why for left in progress.left}


@schedule(150, rule="B48: the throttle of moves that are over is taken away", mutant="the-throttle-is-forgotten")
def test_150_who_set_the_throttle_is_gone_when_the_moves_end() -> None:
    """KAFKA-4596. The command is interrupted, its moves go on under its throttle, and end. Whoever follows them takes
    it away; what an operator had set stays."""
    cluster, clock = MovingCluster(4, {"t": [(1, 2)], "kept": [(1, 2)]}), Hand()
    kept = ConfigResource("topic", "kept")
    cluster.configs[kept] = {"leader.replication.throttled.replicas": "*"}
    admin = cast(Admin, cluster)
    plan = move_off(survey(admin), [1], lambda tp: tp.topic == "t")
    begun(cluster, plan, clock, Throttle(admin, 1000))
    assert cluster.configs[ConfigResource("topic", "t")]["leader.replication.throttled.replicas"] == "0:1,0:2"
    assert clear(admin, survey(admin)) == []  # it still copies
    cluster.arrive()
    assert clear(admin, survey(admin))
    assert cluster.configs.pop(kept) == {"leader.replication.throttled.replicas": "*"}
    assert not cluster.throttled


@schedule(151, rule="B48: a look at moves changes nothing", mutant="a-look-takes-the-throttle")
def test_151_a_status_comes_between_two_moves() -> None:
    """Found here. The first move of a plan is over and the second not begun when another terminal asks for the status:
    it finds nothing under way, and takes the throttle of the plan for a left-over one. The second move was copied at
    full speed."""
    cluster, clock = MovingCluster(3, {"t": [(1, 2), (1, 2)]}), Hand()
    admin = cast(Admin, cluster)
    begun(cluster, move_off(survey(admin), [1]), clock, Throttle(admin, 1000))
    cluster.arrive()
    before = list(cluster.calls)
    found, waits = watched(admin, lambda _: True)
    assert waits == []
    assert left_over(admin, found)
    assert cluster.calls == before
    assert cluster.throttled
