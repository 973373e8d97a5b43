"""Schedules 149 to 151, 164, 165: what commands that move replicas must not do while brokers die and operators look."""

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


@schedule(164, rule="B48: what a throttle set is taken away", mutant="what-is-not-shown-is-not-taken-away")
def test_164_a_broker_is_late_with_what_was_set_on_it() -> None:
    """Found on real nodes, one of which had a full disk. It has not heard of its rate when the moves are over, shows
    none, and kept it."""
    cluster, clock = MovingCluster(3, {"t": [(1, 2)]}), Hand()
    admin = cast(Admin, cluster)
    throttle = Throttle(admin, 1000)
    begun(cluster, move_off(survey(admin), [1]), clock, throttle)
    cluster.arrive()
    cluster.late.update({2, 3})
    assert throttle.end(survey(admin))
    assert not cluster.throttled


def _killed_under_a_throttle(cluster: MovingCluster, admin: Admin) -> None:
    """A command set a throttle, and was killed; its move is over."""
    begun(cluster, move_off(survey(admin), [1]), Hand(), Throttle(admin, 1000))
    cluster.arrive()


@schedule(165, rule="B48: no rate of another command comes back", mutant="the-rate-of-another-command-comes-back")
def test_165_the_command_that_set_the_throttle_was_killed() -> None:
    """Found on real nodes. The next command took the rates of a command that was killed for an operator's, and gave
    them back to the brokers at its end: nobody took them away any more."""
    cluster = MovingCluster(3, {"t": [(1, 2)]})
    admin = cast(Admin, cluster)
    _killed_under_a_throttle(cluster, admin)
    throttle = Throttle(admin, 2000)
    running = begun(cluster, move_off(survey(admin), [2]), Hand(), throttle)
    cluster.arrive()
    assert running.step().is_over
    assert throttle.end(survey(admin))
    assert not cluster.throttled


def test_a_rate_that_an_operator_set_comes_back() -> None:
    """He throttles all replicas of a topic, so the rates are his."""
    cluster = MovingCluster(3, {"t": [(1, 2)], "kept": [(1, 2)]})
    admin = cast(Admin, cluster)
    cluster.configs[ConfigResource("topic", "kept")] = {"leader.replication.throttled.replicas": "*"}
    cluster.configs[ConfigResource("broker", "2")] = {"leader.replication.throttled.rate": "77"}
    throttle = Throttle(admin, 1000)
    begun(cluster, move_off(survey(admin), [1], lambda tp: tp.topic == "t"), Hand(), throttle)
    cluster.arrive()
    assert throttle.end(survey(admin))
    assert cluster.configs[ConfigResource("broker", "2")] == {"leader.replication.throttled.rate": "77"}
    assert not clear(admin, survey(admin))


def test_the_rate_of_a_broker_that_was_down_goes_once_it_is_back() -> None:
    """No list is left that it could go with."""
    cluster = MovingCluster(3, {"t": [(1, 2)]})
    admin = cast(Admin, cluster)
    throttle = Throttle(admin, 1000)
    begun(cluster, move_off(survey(admin), [1]), Hand(), throttle)
    cluster.arrive()
    cluster.down.add(2)
    assert throttle.end(survey(admin))
    assert cluster.throttled
    cluster.down.clear()
    assert clear(admin, survey(admin)) == [
        "broker 2: leader.replication.throttled.rate, follower.replication.throttled.rate"
    ]
    assert not cluster.throttled
