"""What exists and where: topics, partitions, brokers. Answered from the broker's own image, controllers or not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import structlog

from strandline.cluster.broker.service.authorizer import (
    CLUSTER,
    CLUSTER_OPERATIONS,
    TOPIC_OPERATIONS,
    Operation,
    allowed,
    operations_bits,
    topic,
)
from strandline.cluster.broker.service.base import Base
from strandline.cluster.broker.service.context import RequestContext
from strandline.cluster.broker.service.topics import find_topic, topic_name_fault
from strandline.controller.api import CreatableTopic, CreateTopicsRequest
from strandline.controller.metadata.image import BrokerInfo, MetadataImage, PartitionInfo, TopicInfo
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import NO_NODE, Endpoint, NodeId, TopicId

log = structlog.get_logger("strandline.service")

FORGET_FENCED_MS = 60_000
"""How long after its fencing a broker is still named to clients."""

DOUBT_MS = 1000
"""A leader whose stream broke is doubted for so long: it is fenced by then, or lives behind a broken link of ours."""


class TopicRef(NamedTuple):
    """A topic asked for, by name or by id."""

    name: str | None
    topic_id: TopicId | None = None


class DescribedTopic(NamedTuple):
    """A topic as found, or the reference and why it was not."""

    ref: TopicRef
    info: TopicInfo | None
    error: ErrorCode = ErrorCode.NONE


class DescribedBroker(NamedTuple):
    """A broker with its endpoint on the asker's listener."""

    node_id: NodeId
    endpoint: Endpoint
    rack: str | None
    fenced: bool


class PartitionPage(NamedTuple):
    """A run of one topic's partitions (KIP-966's paged describe)."""

    topic: DescribedTopic
    partitions: list[PartitionInfo]


class TopicPages(NamedTuple):
    """`next_topic` and `next_partition` say where the next page begins; None at the end."""

    pages: list[PartitionPage]
    next_topic: str | None
    next_partition: int


class Metadata(Base):
    """The metadata operations of the service."""

    def describe_topics(
        self, context: RequestContext, wanted: Sequence[TopicRef] | None, *, may_create: bool
    ) -> list[DescribedTopic]:
        """The topics asked for, in order, each once; None: all that the principal may see.

        Errors of a topic: UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID, INVALID_TOPIC_EXCEPTION,
        TOPIC_AUTHORIZATION_FAILED, and LEADER_NOT_AVAILABLE while it is being created (only where
        `auto.create.topics.enable` is on and the client allows it: `may_create`).
        """
        image = self.image()
        if wanted is None:
            names = list(image.topics)
            answers = self.authorizer.authorize(context, [(Operation.DESCRIBE, topic(name)) for name in names])
            return [
                DescribedTopic(TopicRef(name), image.topics[name])
                for name, answer in zip(names, answers, strict=True)
                if answer
            ]
        described = [self._describe_topic(context, image, ref) for ref in dict.fromkeys(wanted)]
        if may_create and self.configs.broker_value(image, "auto.create.topics.enable") == "true":
            described = self._create_unknown(context, described)
        return described

    def _describe_topic(self, context: RequestContext, image: MetadataImage, ref: TopicRef) -> DescribedTopic:
        found = find_topic(image, ref.name, ref.topic_id)
        name = ref.name if isinstance(found, ErrorCode) else found.name
        if name is not None and not allowed(self.authorizer, context, Operation.DESCRIBE, topic(name)):
            # By id the answer must not tell that the topic exists.
            error = ErrorCode.UNKNOWN_TOPIC_ID if ref.name is None else ErrorCode.TOPIC_AUTHORIZATION_FAILED
            return DescribedTopic(ref, None, error)
        if not isinstance(found, ErrorCode):
            return DescribedTopic(ref, found)
        if ref.name is not None and topic_name_fault(ref.name):
            return DescribedTopic(ref, None, ErrorCode.INVALID_TOPIC_EXCEPTION)
        return DescribedTopic(ref, None, found)

    def _create_unknown(self, context: RequestContext, described: list[DescribedTopic]) -> list[DescribedTopic]:
        unknown = [
            one.ref.name
            for one in described
            if one.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            and one.ref.name is not None
            and allowed(self.authorizer, context, Operation.CREATE, topic(one.ref.name))
        ]
        fresh = [name for name in dict.fromkeys(unknown) if name not in self._being_created]
        if fresh:
            self._being_created.update(dict.fromkeys(fresh))
            self.run(self._auto_create(fresh))
        return [
            one._replace(error=ErrorCode.LEADER_NOT_AVAILABLE) if one.ref.name in self._being_created else one
            for one in described
        ]

    async def _auto_create(self, names: list[str]) -> None:
        try:
            reply = await self.controller.create_topics(
                CreateTopicsRequest(topics=tuple(CreatableTopic(name=name) for name in names)),
                self.config.request_timeout_ms,
            )
            for outcome in reply.topics:
                if outcome.error not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                    log.warning(
                        "topic was not created on first use",
                        topic=outcome.name,
                        error=outcome.error.name,
                        message=outcome.message,
                    )
        except KafkaError as error:
            log.warning("topics were not created on first use", topics=names, error=str(error))
        finally:
            for name in names:
                del self._being_created[name]

    def live_brokers(self, context: RequestContext, *, with_fenced: bool = False) -> list[DescribedBroker]:
        """The brokers that clients of the asker's listener can reach, by node id."""
        image = self.image()
        described = []
        for node_id in sorted(image.brokers):
            broker = image.brokers[node_id]
            endpoint = broker.listeners.get(context.peer.listener)
            if endpoint is not None and (with_fenced or not broker.fenced):
                described.append(DescribedBroker(node_id, endpoint, broker.rack, broker.fenced))
        return described

    def known_brokers(self, context: RequestContext) -> list[DescribedBroker]:
        """The live brokers, and those that were fenced a moment ago: a client drops a broker that is not named any
        more, and librdkafka (2.16) then holds back that broker's partitions for a second before it looks where they
        have gone."""
        now_ms = self.clock.monotonic_ms()
        known = []
        for broker in self.live_brokers(context, with_fenced=True):
            if not broker.fenced:
                self._fenced_since.pop(broker.node_id, None)
            elif now_ms - self._fenced_since.setdefault(broker.node_id, now_ms) > FORGET_FENCED_MS:
                continue
            known.append(broker)
        return known

    def led_elsewhere(self, wanted: Sequence[TopicRef]) -> bool:
        """Any of the topics has a partition that another broker leads."""
        return any(leader != self.node_id for leader in self._leaders(wanted))

    def led_by(self, wanted: Sequence[TopicRef], leaders: Sequence[NodeId]) -> bool:
        """Any of the topics has a partition that one of `leaders` leads."""
        return bool(leaders) and any(leader in leaders for leader in self._leaders(wanted))

    def _leaders(self, wanted: Sequence[TopicRef]) -> Iterator[NodeId]:
        image = self.image()
        for ref in wanted:
            found = find_topic(image, ref.name, ref.topic_id)
            if not isinstance(found, ErrorCode):
                for info in found.partitions.values():
                    yield info.leader

    def doubtful_leaders(self) -> list[NodeId]:
        """Leaders that may have died in the last moments, though the metadata do not say so yet."""
        return self.replicas.lost_leaders(DOUBT_MS)

    def controller_id(self, context: RequestContext) -> NodeId:
        """Where clients should send admin requests.

        Every broker passes them on, so any live one will do (as with Kafka's KRaft); the quorum's leader saves a hop
        where it is a broker too.
        """
        leader = self.quorum.leader_and_epoch.leader_id
        brokers = self.live_brokers(context)
        if leader is not None and any(broker.node_id == leader for broker in brokers):
            return leader
        return brokers[0].node_id if brokers else NO_NODE

    def topic_operations(self, context: RequestContext, name: str) -> int:
        """What the principal may do with a topic, as Kafka's bit field."""
        return operations_bits(self.authorizer, context, topic(name), TOPIC_OPERATIONS)

    def cluster_operations(self, context: RequestContext) -> int:
        """What the principal may do with the cluster, as Kafka's bit field."""
        return operations_bits(self.authorizer, context, CLUSTER, CLUSTER_OPERATIONS)

    def describe_topic_pages(
        self, context: RequestContext, names: Sequence[str], limit: int, start: tuple[str, int] | None
    ) -> TopicPages:
        """Topics in the order of their names, `limit` partitions at most; no names: all of them.

        Raises:
            KafkaError: INVALID_REQUEST for a start that cannot be.
        """
        image = self.image()
        first_topic, first_partition = start if start is not None else ("", 0)
        if first_partition < 0:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "the cursor's partition is negative")
        if names and start is not None and first_topic not in names:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"the topics asked for lack the cursor's {first_topic!r}")
        chosen = sorted(name for name in dict.fromkeys(names or image.topics) if name >= first_topic)
        room = max(1, min(limit, self.config.describe_partitions_max))
        pages: list[PartitionPage] = []
        for name in chosen:
            described = self._describe_topic(context, image, TopicRef(name))
            if described.info is None:
                if names:
                    pages.append(PartitionPage(described, []))
                continue
            if room == 0:
                return TopicPages(pages, name, 0)
            begin = first_partition if name == first_topic else 0
            partitions = [info for index, info in described.info.partitions.items() if index >= begin]
            pages.append(PartitionPage(described, partitions[:room]))
            if len(partitions) > room:
                return TopicPages(pages, name, partitions[room].partition)
            room -= len(partitions)
        return TopicPages(pages, None, -1)


def reachable(broker: BrokerInfo | None, listener: str) -> bool:
    """The broker lives and has the listener."""
    return broker is not None and not broker.fenced and listener in broker.listeners


def offline_replicas(image: MetadataImage, partition: PartitionInfo, listener: str) -> list[NodeId]:
    """The replicas on brokers that cannot be reached."""
    return [node for node in partition.replicas if not reachable(image.brokers.get(node), listener)]
