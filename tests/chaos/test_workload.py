"""What the workload's clients call ok, fail and info: a wrong label invents aborted reads, or hides them."""

from __future__ import annotations

import asyncio
import random

import pytest

from strandline.chaos.checkers.history import History, Partition, Send, Status
from strandline.chaos.workload import LANES, ProducerKind, Workload, WorkloadOptions
from strandline.client.errors import ClientTimeout
from strandline.client.types import Ack
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError

WHERE = Partition("alpha", 0)
ONCE = next(lane for lane in LANES if lane.name == "once")
IDEMPOTENT = next(lane for lane in LANES if lane.name == "idempotent")
LEADER = next(lane for lane in LANES if lane.name == "leader")
FAIL, INFO, OK = Status.FAIL, Status.INFO, Status.OK


def settled(lane: ProducerKind, outcome: Ack | BaseException) -> tuple[Send, Workload]:
    options = WorkloadOptions.draw(random.Random(1))
    workload = Workload("n1:9092", options, History(), lambda: 7.0)
    send = Send("p", WHERE, "v", acks=lane.acks)

    async def settle() -> None:
        future: asyncio.Future[Ack] = asyncio.get_running_loop().create_future()
        if isinstance(outcome, BaseException):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
        workload._settled(send, lane, future)

    asyncio.run(settle())
    return send, workload


@pytest.mark.parametrize(
    ("lane", "error", "label"),
    [
        (ONCE, KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS), FAIL),
        (ONCE, KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND), INFO),
        (ONCE, KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER), INFO),
        (ONCE, KafkaError(ErrorCode.REQUEST_TIMED_OUT), INFO),
        (ONCE, KafkaError(ErrorCode.KAFKA_STORAGE_ERROR), INFO),
        (ONCE, ClientTimeout("the delivery timeout passed"), INFO),
        (ONCE, ConnectionResetError(), INFO),
        (LEADER, KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER), INFO),
        (LEADER, KafkaError(ErrorCode.MESSAGE_TOO_LARGE), FAIL),
        (IDEMPOTENT, KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS), INFO),
        (IDEMPOTENT, KafkaError(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER), INFO),
    ],
)
def test_fail_is_what_certainly_did_not_take_place(lane: ProducerKind, error: BaseException, label: Status) -> None:
    """NOT_ENOUGH_REPLICAS of a single attempt is a fail; AFTER_APPEND, timeouts, broken connections, and any answer
    after a retry are info."""
    send, workload = settled(lane, error)
    assert send.status is label
    assert send.completed_ms == 7.0
    assert not workload.acked


def test_ok_is_promised_under_acks_all_alone() -> None:
    """Progress is what was acknowledged by all in sync: an answer of one broker, or of none, proves nothing."""
    send, workload = settled(IDEMPOTENT, Ack("alpha", 0, 5, 0, None))
    assert (send.status, send.offset, send.acked) == (OK, 5, True)
    assert workload.acked[WHERE] == 1
    send, workload = settled(LEADER, Ack("alpha", 0, 5, 0, None))
    assert (send.status, send.acked) == (OK, False)
    assert not workload.acked
