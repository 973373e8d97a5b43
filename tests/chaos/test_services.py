"""The services of the simulator: what their checkers flag and what they do not, and seeds that a removed rule fails."""

from __future__ import annotations

import asyncio
import random
from itertools import chain
from uuid import UUID

import pytest

from lab.mutants import without
from strandline.chaos.checkers.handled import HandledRecords, check_copied
from strandline.chaos.checkers.invariant import InvariantViolated
from strandline.chaos.nemesis.kinds import DESTRUCTIVE
from strandline.chaos.runner import run_seeds
from strandline.chaos.scenario import ScenarioRun
from strandline.chaos.scenario_options import BESIDE_SERVICES, SERVICES_SHARE, ScenarioOptions
from strandline.chaos.services.options import ServiceOptions, is_poison
from strandline.chaos.services.shared import Shared
from strandline.client.errors import ClientTimeout
from strandline.proto.errors import StrandlineError

OLD, NEW = UUID(int=1), UUID(int=2)

CATCHERS = {
    "unsettled-record-counts-as-done": (4, 5, 7),
    "position-kept-over-a-topic-made-anew": (5, 9, 87),
    "offset-committed-without-its-topic": (653, 663),
    "epochs-of-nothing-have-no-end": (41, 123),
}
"""Seeds that caught each break when this was written; tried first. As the code changes others do: they follow."""


def ledger() -> HandledRecords:
    """Five jobs acknowledged, three of them handled; j7 is poison."""
    one = HandledRecords(is_poison)
    for offset, value in enumerate(("j1", "j2", "j7", "j4", "j5")):
        one.ack(NEW, 0, offset, value)
    one.handled.update(("j1", "j2", "j4"))
    return one


def test_what_is_committed_was_handled() -> None:
    """A commit may stand behind a record that no handler takes, and behind nothing else that nobody handled; offsets
    of an earlier topic of the name are no offsets of this one."""
    one = ledger()
    for offset in range(5):
        one.check_committed("g", NEW, 0, offset)
    with pytest.raises(InvariantViolated, match="CommittedUnhandled") as caught:
        one.check_committed("g", NEW, 0, 5)
    assert caught.value.facts["skipped"] == [(4, "j5")]
    one.check_committed("g", OLD, 0, 5)
    one.check_committed("g", NEW, 1, 5)
    one.handled.add("j5")
    one.check_committed("g", NEW, 0, 5)


def test_every_record_of_a_living_topic_is_handled_or_dead() -> None:
    """Poison is a case for the dead letters, and has to be there; what a deleted topic had is nobody's."""
    one = ledger()
    one.ack(OLD, 0, 0, "f1:1")
    assert one.unhandled(NEW) == ["j5"]
    assert one.ends(NEW) == {0: 5}
    with pytest.raises(InvariantViolated, match="HandledAtLeastOnce"):
        one.check_at_the_end(NEW, ["j7"])
    one.handled.add("j5")
    one.check_at_the_end(NEW, ["j7"])
    with pytest.raises(InvariantViolated, match="j7"):
        one.check_at_the_end(NEW, [])


def test_an_acknowledged_record_is_where_its_ack_said() -> None:
    one = ledger()
    stored = {(0, offset): value for offset, value in enumerate(("j1", "j2", "j7", "j4", "j5", "not acked"))}
    one.check_stored(NEW, stored)
    with pytest.raises(InvariantViolated, match="AckedIsStored"):
        one.check_stored(NEW, stored | {(0, 3): "another"})
    del stored[0, 4]
    with pytest.raises(InvariantViolated, match="AckedIsStored"):
        one.check_stored(NEW, stored)


def test_what_was_asked_to_be_deleted_may_be_gone() -> None:
    """And nothing else; what is there still is what it was. What was answered to be deleted is gone."""
    one = ledger()
    stored = {(0, 2): "j7", (0, 3): "j4", (0, 4): "j5"}
    one.check_trimmed(NEW, stored, asked=2, deleted=2)
    one.check_trimmed(NEW, stored, asked=4, deleted=0)
    with pytest.raises(InvariantViolated, match="AckedIsStored"):
        one.check_trimmed(NEW, stored, asked=1, deleted=0)
    with pytest.raises(InvariantViolated, match="AckedIsStored"):
        one.check_trimmed(NEW, stored | {(0, 2): "another"}, asked=4, deleted=0)
    with pytest.raises(InvariantViolated, match=r"DeletedIsGone.*offsets=\[2\]"):
        one.check_trimmed(NEW, stored, asked=4, deleted=3)


def test_nothing_passes_a_consumer_at_the_end_by() -> None:
    """What lies before its beginning may, and what it has not come to."""
    one = ledger()
    one.check_tail(NEW, 0, 5, {0, 1, 2, 3, 4})
    one.check_tail(NEW, 2, 4, {2, 3})
    one.check_tail(NEW, 5, 5, set())
    with pytest.raises(InvariantViolated, match=r"TailMissesNothing.*\(3, 'j4'\)"):
        one.check_tail(NEW, 2, 5, {2, 4})


def test_nothing_destroys_a_disk_where_one_may_have_the_only_copy() -> None:
    """min.insync.replicas goes down to 1 only in seeds without rotten bits, lost directories and new disks."""
    drawn = [ScenarioOptions.draw(seed) for seed in range(600)]
    altering = [one for one in drawn if one.services is not None and one.services.alters]
    lowering = [one for one in altering if one.services is not None and one.services.lowers_min_isr]
    assert 0.05 * len(drawn) < len(altering) < 0.2 * len(drawn)
    assert 0 < len(lowering) < len(altering)
    assert not any(kind in DESTRUCTIVE for one in lowering for kind in one.faults.kinds)


def test_a_copy_has_each_record_once() -> None:
    check_copied(["a", "b"], ["b", "a"])
    for wrong in (["a"], ["a", "b", "b"], ["a", "b", "c"]):
        with pytest.raises(InvariantViolated, match="CopiedOnce"):
            check_copied(["a", "b"], wrong)


def test_errors_of_clients_are_counted_and_others_are_not_hidden() -> None:
    """A cancellation is what the services are for; an assertion, or a violation, ends the run."""
    shared = Shared("n1:9092", ServiceOptions.draw(random.Random(1)), {})
    shared.end_task(None)
    shared.end_task(asyncio.CancelledError())
    shared.end_task(ClientTimeout("late"))
    assert shared.errors == {"ClientTimeout": 1}
    for error in (AssertionError("ours"), InvariantViolated("CopiedOnce", "")):
        assert not isinstance(error, StrandlineError)
        with pytest.raises(type(error)):
            shared.end_task(error)


def with_services(seeds: range) -> list[int]:
    return [seed for seed in seeds if ScenarioOptions.draw(seed).services is not None]


def test_a_share_of_the_seeds_has_services_and_the_others_are_as_they_were() -> None:
    """They draw from a generator of their own; what they change in the plain workload is written down."""
    drawn = {seed: ScenarioOptions.draw(seed) for seed in range(400)}
    having = [one for one in drawn.values() if one.services is not None]
    assert 0.7 * SERVICES_SHARE < len(having) / len(drawn) < 1.3 * SERVICES_SHARE
    assert all(one.workload.many == BESIDE_SERVICES["workload"]["many"] for one in having)
    assert {style for one in having if one.services for style in one.services.members} == {
        "poll", "commit", "iterate", "run",
    }  # fmt: skip
    assert {one.services.anew for one in having if one.services} == {0, 1, 2, 3}
    assert ScenarioOptions.draw(3) == ScenarioOptions.draw(3)


def test_seeds_with_services_hold() -> None:
    """And do what they are for: records are handled, tasks cancelled, topics found to be other ones."""
    outcomes = list(run_seeds(with_services(range(25)), ScenarioRun, jobs=2))
    assert [(outcome.seed, outcome.message, outcome.details) for outcome in outcomes if not outcome.ok] == []
    figures = [outcome.figures["services"] for outcome in outcomes]
    for name in ("acked", "handled", "cancelled"):
        assert sum(one[name] for one in figures) > 50, name
    assert sum(outcome.figures["marks"].get("topic-made-anew", 0) for outcome in outcomes) > 0


@pytest.mark.parametrize("name", sorted(CATCHERS))
def test_a_broken_rule_of_clients_is_caught(name: str) -> None:
    """One rule removed, some seed with services fails, by an invariant and not by an accident."""
    with without(name):
        for outcome in run_seeds(chain(CATCHERS[name], with_services(range(200, 500))), ScenarioRun, jobs=2):
            if not outcome.ok:
                assert outcome.details == "", outcome.details
                return
    pytest.fail(f"no seed catches {name}")
