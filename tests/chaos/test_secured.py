"""Brokers that ask, in the simulator: what their checkers flag and what not, and seeds that a removed rule fails."""

from __future__ import annotations

from itertools import chain

import pytest

from lab.mutants import without
from strandline.chaos.checkers.invariant import InvariantViolated
from strandline.chaos.checkers.rights import (
    LATE_MS,
    LATE_PROMPT_MS,
    PASSWORD,
    Key,
    Rights,
    Value,
    check_not_denied,
    is_password,
    superseded,
)
from strandline.chaos.runner import run_seeds
from strandline.chaos.scenario import ScenarioRun
from strandline.chaos.scenario_options import ScenarioOptions
from strandline.chaos.secured.options import NODE, SECURED_SHARE, binding_of
from strandline.proto.acls import Operation
from strandline.proto.scram import ScramMechanism, credential_of, salted_password

ANN = Key(PASSWORD, "ann")

CATCHERS = {
    "everybody-is-allowed": ("NobodyGetsIn", (8, 19)),
    "answers-outlive-the-acls": ("NobodyGetsIn NobodyIsKeptOut", (91, 107)),
    "any-proof-is-a-proof": ("NobodyGetsIn", (8, 19)),
    "served-before-the-authentication": ("NobodyGetsIn", (8, 19)),
    "snapshot-without-acls": ("AnsweredRightsStay NobodyIsKeptOut NoNodeFalls", (229,)),
    "snapshot-without-credentials": ("AnsweredRightsStay NobodyIsKeptOut NoNodeFalls", (8, 83)),
    "snapshot-without-quotas": ("AnsweredRightsStay", (8, 87)),
}
"""What notices each break, and seeds that caught it when this was written; tried first. As the code changes others do:
they follow. A node that was given a snapshot without ACLs or credentials may fall when one of them is removed."""


def changed(*steps: tuple[Value, float, float | None], key: Key = ANN) -> Rights:
    """Attempts as (value, begun, answered; None: given up after 4 s), in milliseconds."""
    rights = Rights()
    for value, invoked_ms, answered_ms in steps:
        change = rights.ask(key, value, invoked_ms)
        change.ended_ms = invoked_ms + 4_000 if answered_ms is None else answered_ms
        change.answered = answered_ms is not None
    return rights


def test_what_was_answered_last_is_what_a_key_is() -> None:
    assert changed().may_be(ANN) == [None]
    assert changed(("1", 0, 10)).certain(ANN) == ("1",)
    rights = changed(("1", 0, 10), ("2", 10_000, 10_010))
    assert rights.certain(ANN) == ("2",)
    assert rights.asked(ANN) == ["1", "2"]
    assert list(superseded(rights, "ann")) == ["1"]


def test_what_was_given_up_may_be_or_not() -> None:
    """Also behind what was answered after it: a call that is under way may overtake one that began later."""
    rights = changed(("1", 0, 10), ("2", 10_000, None))
    assert rights.may_be(ANN) == ["1", "2"]
    assert rights.unanswered == [ANN]
    assert list(superseded(rights, "ann")) == []
    assert changed(("1", 0, None), ("2", 10_000, 10_010)).may_be(ANN) == ["2", "1"]
    assert changed(("1", 0, None), ("1", 10_000, 10_010)).certain(ANN) == ("1",)
    assert changed(("1", 0, None), ("2", 5_000 + LATE_MS, 6_000 + LATE_MS)).certain(ANN) == ("2",)


def test_a_key_is_quiet_once_nothing_of_the_past_can_come() -> None:
    """A prompt answer is that of the only call; a late one may be that of a call that was repeated."""
    assert Rights().is_quiet(ANN, 0)
    for rights, quiet_ms in (
        (changed(("1", 0, 10)), 10 + LATE_PROMPT_MS),
        (changed(("1", 0, 3_000)), 3_000 + LATE_MS),
        (changed(("1", 0, None)), 4_000 + LATE_MS),
    ):
        assert not rights.is_quiet(ANN, quiet_ms - 1)
        assert rights.is_quiet(ANN, quiet_ms)


def test_nobody_gets_in_by_what_was_never_given() -> None:
    """What was given once counts: a broker that is cut off goes on by it."""
    rights = changed((True, 0, 10), (None, 10_000, 10_010), key=Key("write", "ann"))
    rights.ask(ANN, "ann:1", 0)
    rights.check_opened("ann", "ann:1")
    rights.check_used("ann", "write")
    for user, password in (("ann", "ann:2"), ("ben", "ann:1")):
        with pytest.raises(InvariantViolated, match="NobodyGetsIn"):
            rights.check_opened(user, password)
    for user, right in (("ann", "read"), ("ben", "write")):
        with pytest.raises(InvariantViolated, match="NobodyGetsIn"):
            rights.check_used(user, right)


def test_records_are_of_those_who_may_write() -> None:
    rights = changed((True, 0, 10), key=Key("write", "ann"))
    rights.super_users = ("admin",)
    rights.stored[0, 0] = "admin:0"
    rights.check_records({(0, 0): "admin:0", (0, 1): "ann:7"})
    for records, name in (
        ({(0, 0): "ann:7"}, "AckedIsStored"),
        ({}, "AckedIsStored"),
        ({(0, 0): "admin:0", (0, 1): "ben:7"}, "NobodyGetsIn"),
    ):
        with pytest.raises(InvariantViolated, match=name):
            rights.check_records(records)
    rights.denied["ann:7"] = None
    with pytest.raises(InvariantViolated, match="was refused, and is stored"):
        rights.check_records({(0, 0): "admin:0", (0, 1): "ann:7"})


def test_a_node_holds_what_was_answered() -> None:
    rights = changed(("1", 0, 10), ("2", 10_000, None))
    for value in ("1", "2"):
        rights.check_held("n1", lambda _key, asked, held=value: asked == held)  # type: ignore[misc]
    with pytest.raises(InvariantViolated, match=r"AnsweredRightsStay.*password of ann.*answered at 10"):
        rights.check_held("n1", lambda _key, asked: asked is None)


def test_a_credential_is_that_of_one_password() -> None:
    salted = salted_password(ScramMechanism.SHA_256, "ann:1", b"salt", 4096)
    credential = credential_of(ScramMechanism.SHA_256, salted, b"salt", 4096)
    assert is_password(credential, "ann:1")
    assert is_password(None, None)
    assert not is_password(credential, "ann:2")
    assert not is_password(credential, None)
    assert not is_password(None, "ann:1")


def test_a_client_with_all_rights_is_never_denied() -> None:
    """Whatever else it meets."""
    check_not_denied({"ClientTimeout": 3, "NOT_LEADER_OR_FOLLOWER": 7})
    for name in ("SASL_AUTHENTICATION_FAILED", "TOPIC_AUTHORIZATION_FAILED"):
        with pytest.raises(InvariantViolated, match=f"NobodyIsKeptOut.*{name}=1"):
            check_not_denied({"ClientTimeout": 3, name: 1})


def test_a_right_is_one_entry() -> None:
    """And no two rights are the same entry."""
    rights = [Key(kind, who) for kind in ("write", "read", "all topics", "all groups") for who in ("ann", "client")]
    assert len({binding_of(right) for right in rights}) == len(rights)
    assert binding_of(Key("write", "ann")).operation is Operation.WRITE


def secured(seeds: range) -> list[int]:
    return [seed for seed in seeds if ScenarioOptions.draw(seed).secured is not None]


def test_a_share_of_the_seeds_is_secured_and_the_others_are_as_they_were() -> None:
    """They draw from a generator of their own, beside the services and all else; nodes get settings more."""
    drawn = {seed: ScenarioOptions.draw(seed) for seed in range(600)}
    having = [one for one in drawn.values() if one.secured is not None]
    assert 0.7 * SECURED_SHARE < len(having) / len(drawn) < 1.3 * SECURED_SHARE
    assert 0 < sum(one.services is not None for one in having) < len(having)
    assert 0 < sum(one.split_layout for one in having) < len(having)
    assert all(NODE.items() <= one.node.items() for one in having)
    others = [one for one in drawn.values() if one.secured is None]
    assert not any(NODE.keys() & one.node.keys() for one in others)
    assert ScenarioOptions.draw(8) == ScenarioOptions.draw(8)


def test_secured_seeds_hold() -> None:
    """And do what they are for: changes are answered, attempts let in and refused, by brokers with services beside
    them too; who reads the timeline or the figures sees it."""
    outcomes = list(run_seeds((8, 19, 91), ScenarioRun, jobs=2))
    assert [(outcome.seed, outcome.message, outcome.details) for outcome in outcomes if not outcome.ok] == []
    for outcome in outcomes:
        figures = outcome.figures["secured"]
        assert figures["answered"] > 10
        for what in ("login: in", "login: refused", "write: in", "write: refused", "read: in", "read: refused"):
            assert figures["attempts"][what] > 0, what
        assert any("brokers ask" in line for _, line in outcome.events)


@pytest.mark.parametrize("name", sorted(CATCHERS))
def test_a_broken_rule_of_security_is_caught(name: str) -> None:
    """One rule removed, some secured seed fails, by an invariant that speaks of it."""
    wanted, seeds = CATCHERS[name]
    with without(name):
        for outcome in run_seeds(chain(seeds, secured(range(200, 400))), ScenarioRun, jobs=2):
            if not outcome.ok:
                assert outcome.error in wanted.split(), (outcome.message, outcome.details)
                return
    pytest.fail(f"no seed catches {name}")
