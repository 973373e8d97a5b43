"""ElectLeaders (43), with a preview.

Kafka has two election types, 0 (preferred) and 1 (unclean). Here there are two more, -1 and -2, which preview the same
elections: the messages tell what each election would do and lose. A broker that does not know these types refuses
them, whereas it would ignore a flag in a tagged field and hold the election.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any

from strandline.cluster.broker.api import Call, Change, by_schema, part
from strandline.cluster.broker.each_item import ASKED_MAX
from strandline.cluster.broker.request import Authorizer, require
from strandline.controller import operations
from strandline.controller.api import Candidate, ElectionKind, ElectionOutcome, ElectLeadersRequest, PartitionRef
from strandline.controller.channel import ControllerChannel
from strandline.controller.metadata.image import MetadataImage, TopicInfo
from strandline.controller.metadata.records import PartitionRecord
from strandline.log.findings import LogCondition
from strandline.proto.acls import CLUSTER, Operation
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.kafka.apis import Api
from strandline.proto.steps import Mapped, each, grouped

_KINDS = {
    0: (ElectionKind.PREFERRED, False),
    1: (ElectionKind.UNCLEAN, False),
    -1: (ElectionKind.PREFERRED, True),
    -2: (ElectionKind.UNCLEAN, True),
}


_NOTHING_TO_DO = (ErrorCode.ELECTION_NOT_NEEDED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
"""Outcomes left out of the response to a request that names no partitions; unknown ones were deleted meanwhile."""


class ElectionsHandler:
    """Forwards elections that an operator requests to the active controller."""

    def __init__(
        self, *, image: Callable[[], MetadataImage], authorizer: Authorizer, controller: ControllerChannel
    ) -> None:
        self._image = image
        self._authorizer = authorizer
        self._controller = controller

    async def elect(self, call: Call) -> Any:
        """Answer ElectLeaders: one outcome per named partition, or, if none is named, per partition that needed an
        election. The controller is asked in parts of `ASKED_MAX` partitions.

        Raises:
            KafkaError: CLUSTER_AUTHORIZATION_FAILED, INVALID_REQUEST (unknown election type), or an error of the
                requests to the controller.
        """
        wire_kind = getattr(call.request, "election_type", 0)  # version 0 has preferred elections only
        if wire_kind not in _KINDS:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"no election type {wire_kind}: 0 is preferred, 1 unclean")
        kind, dry_run = _KINDS[wire_kind]
        stepped = call.connection.stepped
        named = tuple(dict.fromkeys(await stepped(each(_reference, _named(call)))))
        if call.request.topic_partitions is not None and not named:
            return part(error_code=ErrorCode.NONE, replica_election_results=())
        require(self._authorizer, call.context, Operation.ALTER, CLUSTER)
        partitions: Sequence[PartitionRef] = named
        if not named:
            partitions = await stepped(each(_place, self._image().partitions()))

        async def ask_for(start: int) -> Sequence[ElectionOutcome]:
            some = tuple(partitions[start : start + ASKED_MAX])
            request = ElectLeadersRequest(kind, some, dry_run)
            return (await self._controller.ask(operations.ELECT_LEADERS, request, call.request.timeout)).outcomes

        found = await call.connection.each(ask_for, range(0, len(partitions), ASKED_MAX))
        outcomes = list(chain.from_iterable(found))
        if not named:
            outcomes = [one for one in outcomes if one.error not in _NOTHING_TO_DO]
        topics = await stepped(grouped((one.topic, one) for one in outcomes))
        results = Mapped(partial(_elected, dry_run), topics, topics.values())
        return part(error_code=ErrorCode.NONE, replica_election_results=results)


def _named(call: Call) -> Iterator[tuple[str, int]]:
    return ((topic.topic, number) for topic in call.request.topic_partitions or () for number in topic.partitions)


def _reference(named: tuple[str, int]) -> PartitionRef:
    return PartitionRef(*named)


def _place(found: tuple[TopicInfo, PartitionRecord]) -> PartitionRef:
    topic, partition = found
    return PartitionRef(topic.name, partition.partition)


def _elected(dry_run: bool, topic: str, outcomes: list[ElectionOutcome]) -> Any:
    def result(outcome: ElectionOutcome) -> Any:
        words = _message(outcome, dry_run) or None
        return part(partition_id=outcome.partition, error_code=outcome.error, error_message=words)

    return part(topic=topic, partition_result=Mapped(result, outcomes))


def _message(outcome: ElectionOutcome, dry_run: bool) -> str:
    """Return the message for one partition; in a preview with the chosen leader and all candidates."""
    if not dry_run:
        return outcome.message
    chosen = f"Broker {outcome.leader} would lead." if outcome.error is ErrorCode.NONE else ""
    candidates = "; ".join(_candidate(one) for one in outcome.candidates)
    return " ".join(part for part in (chosen, outcome.message, candidates and f"Candidates: {candidates}.") if part)


def _candidate(one: Candidate) -> str:
    place = "not in sync"
    if one.in_isr or one.in_elr:
        place = "in the ISR" if one.in_isr else "eligible"
    elif one.in_doubt:
        place = "in doubt"
    elif one.condition is LogCondition.LACKING:
        place = "lacked records when it started"
    if not one.servable:
        place += ", cannot serve its log"
    known = "offsets unknown"
    if one.age_ms >= 0:
        known = f"log end {one.log_end_offset} of epoch {one.last_epoch}, high watermark {one.high_watermark}"
    lacks = f", lacks {one.lost_records} committed" if one.lost_records > 0 else ""
    return f"broker {one.node_id} ({'up' if one.alive else 'down'}, {place}, {known}{lacks})"


def _leaders_elected(request: Any, answer: Any) -> Iterator[Change]:
    whole = getattr(answer, "error_code", ErrorCode.NONE)
    if whole is not ErrorCode.NONE:
        named = [
            f"leader of {one.topic}-{number}" for one in request.topic_partitions or () for number in one.partitions
        ]
        yield from ((what, whole) for what in named or ["leaders"])
        return
    for topic in answer.replica_election_results:
        for one in topic.partition_result:
            yield f"leader of {topic.topic}-{one.partition_id}", one.error_code


ROWS = (by_schema(Api.ELECT_LEADERS, (0, 2), ElectionsHandler, ElectionsHandler.elect, changes=_leaders_elected),)
