"""The table of roles: complete, and nothing outside of it happens (style: transitions stand in one table)."""

from __future__ import annotations

import pytest

from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import FatalError
from strandline.proto.transitions import next_state
from strandline.replica.core import Judgement, judge_answer
from strandline.replica.states import TRANSITIONS, Role, RoleEvent


def test_every_living_role_knows_every_event() -> None:
    assert set(TRANSITIONS) == {(role, event) for role in Role if role is not Role.DELETED for event in RoleEvent}


@pytest.mark.parametrize("event", list(RoleEvent))
def test_a_deleted_partition_is_nothing_any_more(event: RoleEvent) -> None:
    with pytest.raises(FatalError, match=r"LegalTransition.*state=deleted"):
        next_state(TRANSITIONS, Role.DELETED, event)


@pytest.mark.parametrize("event", [t for t in RoleEvent if t is not RoleEvent.DELETED])
def test_only_deletion_ends_being_offline(event: RoleEvent) -> None:
    """Schedules 18, 32: a log whose disk failed is used no more, whatever the metadata say."""
    assert next_state(TRANSITIONS, Role.OFFLINE, event) is Role.OFFLINE


def test_only_two_answers_end_a_proposed_isr_change() -> None:
    """Rule B2, AlterPartition; everything unheard of is sent again."""
    refused = {code for code in ErrorCode if judge_answer(code) is Judgement.REFUSED}
    assert refused == {ErrorCode.INELIGIBLE_REPLICA, ErrorCode.OPERATION_NOT_ATTEMPTED}
    assert judge_answer(ErrorCode.NOT_CONTROLLER) is Judgement.RETRY
