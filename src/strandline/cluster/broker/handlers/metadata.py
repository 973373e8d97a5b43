"""Metadata (3): topics, partitions and brokers, from this broker's own image, whether or not a controller can be
reached. It creates topics on their first use (`auto.create.topics.enable`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from functools import partial
from itertools import compress
from typing import NamedTuple

import structlog

from strandline.cluster.broker.api import by_hand
from strandline.cluster.broker.brokers import LOOK_MS, SETTLE_MS_MAX, Brokers, offline_replicas, reachable
from strandline.cluster.broker.request import (
    OPERATIONS_NOT_ASKED,
    Authorizer,
    Charge,
    Exchange,
    RequestContext,
    allowed,
    cluster_operations_bits,
    operations_bits,
    topic,
)
from strandline.cluster.broker.requested_topics import DescribedTopic, TopicRef, describe_topic, find_topic, may_see
from strandline.controller import operations
from strandline.controller.api import CreatableTopic, CreateTopicsRequest
from strandline.controller.channel import ControllerChannel
from strandline.controller.metadata.config_resolver import ConfigResolver
from strandline.controller.metadata.image import MetadataImage, TopicInfo
from strandline.controller.metadata.records import PartitionRecord
from strandline.controller.metadata.settings import BrokerSettings
from strandline.proto.acls import CLUSTER, Operation
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError, ProtocolError
from strandline.proto.ids import NO_NODE, ZERO_UUID, NodeId
from strandline.proto.internal_topics import INTERNAL_TOPICS
from strandline.proto.kafka.apis import Api
from strandline.proto.kafka.fields import (
    INT16,
    INT32,
    NO_TAGS,
    REQUEST_ELEMENTS_MAX,
    Elements,
    array_head,
    int32_array,
    nullable_string,
    read_bool,
    read_count,
    read_name,
    read_string,
    read_uuid,
    skip_tags,
    string,
)
from strandline.proto.ports import Clock
from strandline.proto.steps import FEW, ITEMS, Steps, at_once, each, parts, whole
from strandline.proto.tasks import spawn

VERSIONS = (0, 13)
RACK_SINCE = 1
CLUSTER_ID_SINCE = 2
THROTTLE_SINCE = 3
MAY_CREATE_SINCE = 4
OPERATIONS_SINCE = 8
FLEXIBLE_SINCE = 9
TOPIC_ID_SINCE = 10
NO_CLUSTER_OPERATIONS_SINCE = 11
BY_ID_SINCE = 12
ERROR_SINCE = 13


class MetadataMessage(NamedTuple):
    """A decoded Metadata request; `topics` is None for all topics."""

    topics: list[TopicRef] | None
    may_create: bool
    cluster_operations: bool
    topic_operations: bool


def read_request_in_steps(view: memoryview, version: int) -> Steps[MetadataMessage]:
    """Decode a request, in steps. Raises ProtocolError."""
    flexible = version >= FLEXIBLE_SINCE
    count, position = read_count(view, 0, 1 if flexible else 2, flexible, Elements(REQUEST_ELEMENTS_MAX))
    if count < 0 and version < RACK_SINCE:
        raise ProtocolError("A null array where the message must have one")
    topics: list[TopicRef] = []
    for number in range(count):
        if number % ITEMS == ITEMS - 1:
            yield
        topic_id = None
        if version >= TOPIC_ID_SINCE:
            topic_id, position = read_uuid(view, position)
            name, position = read_string(view, position, flexible)
        else:
            name, position = read_name(view, position, flexible)
        # By id if there is one: the Java client sends an empty name beside it, not null.
        by_id = name is None or topic_id not in (None, ZERO_UUID)
        topics.append(TopicRef(None, topic_id) if by_id else TopicRef(name, None))
        if flexible:
            position = skip_tags(view, position)
    may_create, cluster_operations, topic_operations = True, False, False
    if version >= MAY_CREATE_SINCE:
        may_create, position = read_bool(view, position)
    if OPERATIONS_SINCE <= version < NO_CLUSTER_OPERATIONS_SINCE:
        cluster_operations, position = read_bool(view, position)
    if version >= OPERATIONS_SINCE:
        topic_operations, position = read_bool(view, position)
    if flexible:
        position = skip_tags(view, position)
    # Bytes after the end are ignored, in this API only: librdkafka (2.16 at least) sends three of them when it asks
    # for all topics in a flexible version, and Kafka ignores them.
    everything = count < 0 or (version == 0 and count == 0)
    return MetadataMessage(None if everything else topics, may_create, cluster_operations, topic_operations)


read_request = whole(read_request_in_steps)


# Partition arrays, which stay encoded


class Shape(IntEnum):
    """Formats of a topic's partition array, by the first version that has each."""

    LIVE_ONLY = 0  # version 0 leaves out dead replicas
    PLAIN = 1
    OFFLINE = 5
    LISTENER_ERROR = 6
    EPOCH = 7
    FLEXIBLE = 9


def shape_of(version: int) -> Shape:
    return max(shape for shape in Shape if shape <= version)


class _Chunk(NamedTuple):
    topic: TopicInfo
    brokers: object
    encoded: bytes


class PartitionChunks:
    """Cache of encoded partition arrays, by listener, shape and topic, until the topic or a broker changes.

    With 10,000 partitions, metadata of all topics take some 400 kB; encoding them for each request would block the
    event loop for a fifth of a second.

    A chunk is valid while the image has the same topic object and the same brokers object: images share unchanged
    parts, so comparing identities is enough.
    """

    def __init__(self) -> None:
        self._chunks: dict[tuple[str, Shape, object], _Chunk] = {}

    def get(
        self, image: MetadataImage, topic: TopicInfo, listener: str, shape: Shape, doubtful: Sequence[NodeId]
    ) -> Steps[bytes]:
        """Return the encoded partition array of a topic; it is not cached while a leader is in doubt (`doubtful`)."""
        if doubtful:
            return (yield from encode_partitions(image, topic, listener, shape, doubtful))
        key = (listener, shape, topic.topic_id)
        chunk = self._chunks.get(key)
        if chunk is None or chunk.topic is not topic or chunk.brokers is not image.brokers:
            if len(self._chunks) > 2 * len(Shape) * (len(image.topics) + 16):
                self._chunks.clear()  # most chunks are of deleted topics
            encoded = yield from encode_partitions(image, topic, listener, shape, ())
            self._chunks[key] = chunk = _Chunk(topic, image.brokers, encoded)
        return chunk.encoded


def encode_partitions(
    image: MetadataImage, topic: TopicInfo, listener: str, shape: Shape, doubtful: Sequence[NodeId]
) -> Steps[bytes]:
    """Encode the partition array of a topic. Partitions whose leader is in `doubtful` get LEADER_NOT_AVAILABLE, so that
    clients ask again soon instead of waiting for a leader that does not answer."""
    flexible = shape is Shape.FLEXIBLE
    out = bytearray(array_head(len(topic.partitions), flexible))
    for number, info in enumerate(topic.partitions.values(), 1):
        if number % FEW == 0:  # rule A48/metadata-is-encoded-in-one-turn
            yield
        replicas, isr = list(info.replicas), list(info.isr)
        error, leader = _leader_of(image, info, listener, shape)
        if leader in doubtful:
            error, leader = ErrorCode.LEADER_NOT_AVAILABLE, NO_NODE
        if shape is Shape.LIVE_ONLY:
            replicas, isr = (
                [node for node in nodes if reachable(image.brokers.get(node), listener)] for nodes in (replicas, isr)
            )
            if error is ErrorCode.NONE and (len(replicas) < len(info.replicas) or len(isr) < len(info.isr)):
                error = ErrorCode.REPLICA_NOT_AVAILABLE
        out += INT16.pack(error) + INT32.pack(info.partition) + INT32.pack(leader)
        if shape >= Shape.EPOCH:
            out += INT32.pack(info.leader_epoch)
        out += int32_array(replicas, flexible) + int32_array(isr, flexible)
        if shape >= Shape.OFFLINE:
            out += int32_array(offline_replicas(image, info, listener), flexible)
        if flexible:
            out += NO_TAGS
    return bytes(out)


def _leader_of(image: MetadataImage, info: PartitionRecord, listener: str, shape: Shape) -> tuple[ErrorCode, int]:
    broker = image.brokers.get(info.leader)
    if broker is None:
        return ErrorCode.LEADER_NOT_AVAILABLE, NO_NODE
    if listener not in broker.listeners:
        has_error = shape >= Shape.LISTENER_ERROR
        return (ErrorCode.LISTENER_NOT_FOUND if has_error else ErrorCode.LEADER_NOT_AVAILABLE), NO_NODE
    return ErrorCode.NONE, info.leader


# The handler


class MetadataHandler:
    """Handles Metadata requests: decodes them, finds the topics, and answers from encoded chunks."""

    def __init__(
        self,
        *,
        node_id: NodeId,
        image: Callable[[], MetadataImage],
        authorizer: Authorizer,
        brokers: Brokers,
        creation: AutoCreation,
        clock: Clock,
    ) -> None:
        self._node_id = node_id
        self._image = image
        self._authorizer = authorizer
        self._brokers = brokers
        self._creation = creation
        self._clock = clock
        self._chunks = PartitionChunks()

    def handle(self, exchange: Exchange, body: memoryview) -> None:
        """Answer at once, or after `LOOK_MS` or more if another broker leads a requested partition, as that broker may
        just have died (`Brokers.doubtful_leaders`)."""
        exchange.connection.in_steps(exchange, self._begin(exchange, body))

    def _begin(self, exchange: Exchange, body: memoryview) -> Steps[None]:
        request = yield from read_request_in_steps(body, exchange.context.version)
        led_elsewhere = False
        for part in parts(request.topics or ()):
            yield
            led_elsewhere = led_elsewhere or self._led_elsewhere(exchange.context, part)
        if led_elsewhere:
            self._answer_later(exchange, request)
        else:
            yield from self._answer(exchange, request)

    def refuse_all(self, exchange: Exchange, body: memoryview, error: ErrorCode) -> bool:
        """Answer with `error` for every topic, or for the whole response if the request names no topic. Return False if
        the version has no such error."""
        context = exchange.context
        request = read_request(body, context.version)
        wanted = request.topics
        if wanted is None:
            wanted = [TopicRef(info.name, info.topic_id) for info in self._image().topics.values()]
        whole = ErrorCode.NONE if wanted else error
        if whole is not ErrorCode.NONE and context.version < ERROR_SINCE:
            return False
        topics = [DescribedTopic(ref, None, error) for ref in wanted]
        exchange.respond(at_once(self._written(exchange, request, topics, error=whole)))
        return True

    def _answer(self, exchange: Exchange, request: MetadataMessage) -> Steps[None]:
        topics = yield from self._describe_topics(exchange, request.topics, may_create=request.may_create)
        exchange.respond((yield from self._written(exchange, request, topics)))

    def _answer_later(self, exchange: Exchange, request: MetadataMessage) -> None:
        """Answer after `LOOK_MS`; if leaders of requested topics are in doubt, once they have been replaced, but after
        `SETTLE_MS_MAX` at the latest."""
        in_doubt = self._brokers.doubtful_leaders()
        waited_ms = self._clock.monotonic_ms() - exchange.context.received_ms
        led_by = request.topics and self._led_by(exchange.context, request.topics, in_doubt)
        settled = waited_ms >= LOOK_MS and not led_by
        if settled or waited_ms >= SETTLE_MS_MAX:
            exchange.attempt(lambda: exchange.connection.in_steps(exchange, self._answer(exchange, request)))
        else:
            loop = asyncio.get_running_loop()
            exchange.when_gone = loop.call_later(LOOK_MS / 1000, self._answer_later, exchange, request).cancel

    def _leaders(self, context: RequestContext, wanted: Sequence[TopicRef]) -> Iterator[NodeId]:
        """Yield the leaders of the topics that the principal may see; for others a delay would tell that they exist."""
        image = self._image()
        for ref in wanted:
            found = find_topic(image, ref.name, ref.topic_id)
            if not isinstance(found, ErrorCode) and may_see(self._authorizer, context, found.name):
                for info in found.partitions.values():
                    yield info.leader

    def _led_elsewhere(self, context: RequestContext, wanted: Sequence[TopicRef]) -> bool:
        """Return whether another broker leads a partition of one of the topics."""
        return any(leader != self._node_id for leader in self._leaders(context, wanted))

    def _led_by(self, context: RequestContext, wanted: Sequence[TopicRef], leaders: Sequence[NodeId]) -> bool:
        """Return whether one of `leaders` leads a partition of one of the topics."""
        return bool(leaders) and any(leader in leaders for leader in self._leaders(context, wanted))

    def _describe_topics(
        self, exchange: Exchange, wanted: Sequence[TopicRef] | None, *, may_create: bool
    ) -> Steps[list[DescribedTopic]]:
        """Return the requested topics, in order, each once; `wanted` None: all that the principal may see.

        Errors of a topic: UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID, INVALID_TOPIC_EXCEPTION,
        TOPIC_AUTHORIZATION_FAILED, and LEADER_NOT_AVAILABLE while it is being created (only if
        `auto.create.topics.enable` is on and the client allows it: `may_create`).
        """
        image, context = self._image(), exchange.context
        if wanted is None:
            every: list[DescribedTopic] = []
            for names in parts(list(image.topics)):
                yield
                actions = [(Operation.DESCRIBE, topic(name)) for name in names]
                answers = self._authorizer.authorize(context, actions, noted=False)
                every += [DescribedTopic(TopicRef(name), image.topics[name]) for name in compress(names, answers)]
            return every
        described = yield from each(partial(describe_topic, self._authorizer, context, image), dict.fromkeys(wanted))
        if may_create and self._creation.is_on:
            described = self._create_unknown(exchange, described)
        return described

    def _create_unknown(self, exchange: Exchange, described: list[DescribedTopic]) -> list[DescribedTopic]:
        context = exchange.context
        # rule A20/clients-make-the-topic-of-the-audit
        unknown = [
            one.ref.name
            for one in described
            if one.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            and one.ref.name is not None
            and one.ref.name not in INTERNAL_TOPICS  # created with their own settings, by the parts that write them
        ]
        refused: set[str] = set()
        if unknown and not allowed(self._authorizer, context, Operation.CREATE, CLUSTER, noted=False):
            answers = self._authorizer.authorize(context, [(Operation.CREATE, topic(name)) for name in unknown])
            refused = {name for name, answer in zip(unknown, answers, strict=True) if not answer}
        with exchange.charge() as charge:
            self._creation.create([name for name in unknown if name not in refused], charge)
        return [self._while_created(one, refused) for one in described]

    def _while_created(self, one: DescribedTopic, refused: set[str]) -> DescribedTopic:
        if one.info is None and one.ref.name in refused:
            return one._replace(error=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        if one.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and self._creation.is_creating(one.ref.name):
            return one._replace(error=ErrorCode.LEADER_NOT_AVAILABLE)
        return one

    def _written(
        self,
        exchange: Exchange,
        request: MetadataMessage,
        topics: list[DescribedTopic],
        *,
        error: ErrorCode = ErrorCode.NONE,
    ) -> Steps[list[bytes]]:
        context = exchange.context
        version = context.version
        flexible = version >= FLEXIBLE_SINCE
        image = self._image()
        throttle = INT32.pack(exchange.throttle_ms()) if version >= THROTTLE_SINCE else b""
        pieces = [throttle, self._head(context), array_head(len(topics), flexible)]
        shape = shape_of(version)
        doubtful = self._brokers.doubtful_leaders()
        for number, one in enumerate(topics, 1):
            if number % FEW == 0:
                yield
            pieces.append(_topic_head(one, version))
            if one.info is None:
                pieces.append(array_head(0, flexible))
            else:
                pieces.append((yield from self._chunks.get(image, one.info, context.peer.listener, shape, doubtful)))
            if version >= OPERATIONS_SINCE:
                asked = request.topic_operations and one.info is not None
                name = one.info.name if one.info is not None else ""
                pieces.append(
                    INT32.pack(
                        operations_bits(self._authorizer, context, topic(name)) if asked else OPERATIONS_NOT_ASKED
                    )
                )
            if flexible:
                pieces.append(NO_TAGS)
        if OPERATIONS_SINCE <= version < NO_CLUSTER_OPERATIONS_SINCE:
            asked = request.cluster_operations
            pieces.append(
                INT32.pack(cluster_operations_bits(self._authorizer, context) if asked else OPERATIONS_NOT_ASKED)
            )
        if version >= ERROR_SINCE:
            pieces.append(INT16.pack(error))
        if flexible:
            pieces.append(NO_TAGS)
        return [b"".join(pieces)]

    def _head(self, context: RequestContext) -> bytes:
        version = context.version
        flexible = version >= FLEXIBLE_SINCE
        brokers = self._brokers.known_brokers(context)
        out = bytearray(array_head(len(brokers), flexible))
        for broker in brokers:
            out += (
                INT32.pack(broker.node_id) + string(broker.endpoint.host, flexible) + INT32.pack(broker.endpoint.port)
            )
            if version >= RACK_SINCE:
                out += nullable_string(broker.rack, flexible)
            if flexible:
                out += NO_TAGS
        if version >= CLUSTER_ID_SINCE:
            out += nullable_string(self._image().cluster_id, flexible)
        if version >= RACK_SINCE:
            out += INT32.pack(self._brokers.controller_id(context))
        return bytes(out)


def _topic_head(topic: DescribedTopic, version: int) -> bytes:
    flexible = version >= FLEXIBLE_SINCE
    name = topic.info.name if topic.info is not None else topic.ref.name
    out = INT16.pack(topic.error)
    out += nullable_string(name, flexible) if version >= BY_ID_SINCE else string(name or "", flexible)
    if version >= TOPIC_ID_SINCE:
        topic_id = topic.info.topic_id if topic.info is not None else topic.ref.topic_id
        out += (topic_id or ZERO_UUID).bytes
    if version >= RACK_SINCE:
        out += b"\x01" if name in INTERNAL_TOPICS else b"\x00"
    return out


log = structlog.get_logger("strandline.broker")


class AutoCreation:
    """Creates topics on their first use, by requests to the controller in the background, one at a time per name."""

    def __init__(
        self,
        controller: ControllerChannel,
        image: Callable[[], MetadataImage],
        configs: ConfigResolver,
        *,
        timeout_ms: float,
    ) -> None:
        self._controller = controller
        self._image = image
        self._configs = configs
        self._timeout_ms = timeout_ms
        self._being_created: dict[str, None] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}

    def close(self) -> None:
        """Cancel the pending requests."""
        for task in list(self._tasks):
            task.cancel()

    @property
    def is_on(self) -> bool:
        """True if the cluster creates topics on their first use."""
        return self._configs.broker_value(self._image(), BrokerSettings.auto_create_topics_enable)

    def create(self, names: Sequence[str], charge: Charge) -> None:
        """Begin to create the topics that are not being created yet and that the charge admits."""
        fresh = [name for name in dict.fromkeys(names) if name not in self._being_created]
        partitions = self._configs.broker_value(self._image(), BrokerSettings.num_partitions) if fresh else 0
        fresh = [name for name in fresh if charge.admits(partitions)]  # rule A21/first-uses-are-free
        if fresh:
            self._being_created.update(dict.fromkeys(fresh))
            task = spawn(self._create(fresh, charge, partitions), _log_failure)
            self._tasks[task] = None
            task.add_done_callback(self._tasks.pop)

    def is_creating(self, name: str | None) -> bool:
        """Return whether the controller has been asked for the topic and has not answered yet."""
        return name in self._being_created

    async def _create(self, names: list[str], charge: Charge, partitions: int) -> None:
        """Create topics; `partitions`: the number for which each of them was charged."""
        try:
            reply = await self._controller.ask(
                operations.CREATE_TOPICS,
                CreateTopicsRequest(topics=tuple(CreatableTopic(name=name) for name in names)),
                self._timeout_ms,
            )
            for outcome in reply.topics:
                charge.correct(max(outcome.num_partitions, 0) - partitions)
                if outcome.error not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                    log.warning(
                        "topic was not created on first use",
                        topic=outcome.name,
                        error=outcome.error.name,
                        message=outcome.message,
                    )
        except KafkaError as error:
            if error.code is not ErrorCode.REQUEST_TIMED_OUT:  # then they may still be created
                charge.correct(-partitions * len(names))
            log.warning("topics were not created on first use", topics=names, error=str(error))
        finally:
            for name in names:
                del self._being_created[name]


def _log_failure(error: BaseException) -> None:
    log.error("internal error: topics were not created on first use", exc_info=error)


ROWS = (by_hand(Api.METADATA, VERSIONS, MetadataHandler),)
