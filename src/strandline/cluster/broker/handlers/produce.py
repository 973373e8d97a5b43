"""Produce (API key 0): appends batches to the partitions that this broker leads; answers when all appends have ended.

Batches stay views of the receive buffer until they are written. A request has no task and no timer of its own: each
partition's append calls back when its offset is committed (acks=all) or at once, the last callback builds the response,
and one timer wheel for all requests ends those that exceed their timeout.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from strandline.cluster.broker.api import INJECTED, by_hand
from strandline.cluster.broker.brokers import Brokers
from strandline.cluster.broker.first_appends import FirstAppends, Refusal, TransactionGate
from strandline.cluster.broker.request import Authorizer, Exchange, RequestContext, refusal, topic
from strandline.cluster.broker.requested_topics import create_command, find_topic, topic_name_fault
from strandline.cluster.broker.slow_requests import some_of
from strandline.controller.metadata.image import MetadataImage
from strandline.log.batch import (
    ATTRIBUTES_LOW_POSITION,
    CODEC_MASK,
    HEADER_SIZE,
    MAGIC,
    MAGIC_POSITION,
    TRANSACTIONAL_BIT,
    announced_size,
    verify_crc,
)
from strandline.log.compression import Codec
from strandline.log.config import LogConfig
from strandline.log.partition_log import PartitionLog
from strandline.log.recompression import is_slow_to_pack, needs_packing, packed_ahead
from strandline.log.transactions import Verification
from strandline.proto.acls import Operation
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import TopicPartition
from strandline.proto.internal_topics import INTERNAL_TOPICS
from strandline.proto.kafka.apis import Api
from strandline.proto.kafka.fields import NO_TAGS, OWN_CLIENT
from strandline.proto.kafka.produce import (
    FIRST,
    LAST,
    LEADER_SINCE,
    PartitionResult,
    ProduceRequest,
    ProduceTopic,
    read_request,
    write_response,
)
from strandline.proto.marks import mark
from strandline.proto.ports import Clock
from strandline.proto.timers import Deadlines, Ticket
from strandline.replica.manager import ReplicaManager
from strandline.replica.partition import Append
from strandline.replica.states import ACKS_ALL

ACKS = (-1, 0, 1)
"""Valid values of acks; -1 is acks=all."""

ZSTD_VERSION_MIN = 7
"""First version of Produce whose clients know zstd (KIP-110)."""

_RARE_BITS = Codec.ZSTD | TRANSACTIONAL_BIT
"""Bits of a batch's attributes that need further checks."""

HOLD_MS_MAX = 250.0
"""Milliseconds of the event loop after which a request's further batches fail with REQUEST_TIMED_OUT (to be sent again)
if they must be decompressed or recompressed. The event loop decompresses all compressed batches, of which a kilobyte
may become 32 MiB, and recompresses short ones."""

GRANULARITY_MS = 100.0
"""Granularity of the deadlines of produce requests in milliseconds; coarse, as their timeouts are seconds."""


class ProduceResult(NamedTuple):
    """Results of all partitions in the order of the request. `failed`: at least one partition has an error."""

    topics: list[tuple[ProduceTopic, list[PartitionResult]]]
    failed: bool


Done = Callable[[ProduceResult], None]

Slow = tuple[memoryview, LogConfig]
"""A batch that takes long to recompress, and the config of the log that it is for."""

Packed = Mapping[TopicPartition, memoryview | KafkaError]
"""Batches that were recompressed before the append, or the error for which a batch is not appended."""


NOTHING_PACKED: Packed = {}
NOTHING_VERIFIED: Mapping[TopicPartition, Verification] = {}


class Prepared(NamedTuple):
    """Outcome of the work that a request needs before its append.

    Attributes:
        packed: batches or errors that replace the request's batches of these partitions.
        verified: verifications of batches that begin a transaction in their partition.
        refusal: error for which no partition of the request may be written; None: there is none.
        spent_ms: milliseconds of the request's timeout that the preparation took.
    """

    packed: Packed = NOTHING_PACKED
    verified: Mapping[TopicPartition, Verification] = NOTHING_VERIFIED
    refusal: Refusal | None = None
    spent_ms: float = 0.0


NOTHING_PREPARED = Prepared()


class _Pending:
    """A produce request whose appends have not all ended.

    `left` counts these appends, plus one while the request is being processed; `last` is the append that ended last.
    """

    __slots__ = ("_done", "appends", "failed", "last", "left", "result", "ticket")

    def __init__(self, done: Done) -> None:
        self._done = done
        self.left = 1
        self.failed = False
        self.result: list[tuple[ProduceTopic, list[PartitionResult]]] = []
        self.appends: list[tuple[TopicPartition, Append]] = []
        self.last: tuple[TopicPartition, Append] | None = None
        self.ticket: Ticket | None = None

    def one_ended(self) -> None:
        self.left -= 1
        if self.left == 0:  # rule B9/one-answer-for-two-partitions
            if self.ticket is not None:
                self.ticket.cancel()
            self.appends.clear()
            self._done(ProduceResult(self.result, self.failed))

    def expire(self) -> None:
        """End the remaining appends with REQUEST_TIMED_OUT; their batches may still be committed."""
        for _, append in list(self.appends):
            append.cancel(ErrorCode.REQUEST_TIMED_OUT)  # rule B9/timeout-unsaid


class _PartitionAppend:
    """Callback that writes the outcome of one partition's append into the response."""

    __slots__ = ("_image", "_pending", "_result", "_tp")

    def __init__(
        self, image: Callable[[], MetadataImage], pending: _Pending, result: PartitionResult, tp: TopicPartition
    ) -> None:
        self._image = image
        self._pending = pending
        self._result = result
        self._tp = tp

    def __call__(self, outcome: Append) -> None:
        result = self._result
        error = result.error = outcome.error
        if error is ErrorCode.NONE:
            result.base_offset = outcome.base_offset
            result.log_append_time_ms = outcome.log_append_time_ms
            result.log_start_offset = outcome.log_start_offset
            result.synced_replicas = outcome.synced_replicas
        else:
            self._pending.failed = True
            result.message = outcome.message
            _point_to_leader(self._image(), result, self._tp)
        self._pending.last = (self._tp, outcome)
        self._pending.one_ended()


class ProduceHandler:
    """Handles Produce requests: decodes them, appends each partition's batch, and answers."""

    def __init__(
        self,
        *,
        replicas: ReplicaManager,
        image: Callable[[], MetadataImage],
        authorizer: Authorizer,
        brokers: Brokers,
        transactions: TransactionGate,
        clock: Clock,
    ) -> None:
        self._replicas = replicas
        self._image = image
        self._authorizer = authorizer
        self._brokers = brokers
        self._transactions = transactions
        self._clock = clock
        self._deadlines = Deadlines(clock, GRANULARITY_MS)
        self._packer = ThreadPoolExecutor(1, "strandline-pack")

    def close(self) -> None:
        """Cancel all deadlines and recompressions; pending requests are not answered any more."""
        self._deadlines.close()
        self._packer.shutdown(wait=False, cancel_futures=True)

    def handle(self, exchange: Exchange, body: memoryview) -> None:
        """Append the batches, and answer when every partition's append has ended."""
        if self._replicas.trace is not None:
            self._replicas.trace.began(exchange.context.received_ms)
        request = read_request(body, exchange.context.version)
        ended = held = False

        def done(result: ProduceResult) -> None:
            nonlocal ended
            ended = True
            if held:
                exchange.connection.let_go()
            if request.acks != 0:  # rule B9/acks-0-is-answered
                self._respond(exchange, result)
            # rule B9/acks-0-fails-silently
            elif result.failed:
                # Kafka's rule: with acks=0 a closed connection is the only way to tell the producer to look again.
                exchange.drop_connection(f"a write with acks=0 failed: {_first_fault(result)}")
            else:
                exchange.respond_nothing()

        def append(prepared: Prepared) -> None:
            nonlocal held
            self._append(exchange, request, prepared, lambda result: exchange.attempt(lambda: done(result)))
            if not ended and self._replicas.directories.behind is not None:  # rule B51/what-comes-behind-is-taken
                held = True
                exchange.connection.hold()

        slow = self._slow_to_pack(exchange.context, request) if self._replicas.packs_anew else None
        first = None if request.transactional_id is None else self._look_at(exchange.context, request)
        if slow or (first is not None and first.asked):
            # rule C5/later-batches-pass-the-first-one
            exchange.connection.run_alone(exchange, self._append_prepared(exchange, request, slow, first, append))
        elif first is None:
            append(NOTHING_PREPARED)
        else:
            append(Prepared(first.refused, refusal=first.refusal))

    def _look_at(self, context: RequestContext, request: ProduceRequest) -> FirstAppends:
        """Return what a request with a transactional id needs before its append."""
        return self._transactions.begin(context, request.transactional_id or "", self._led_here(context, request))

    async def _append_prepared(
        self,
        exchange: Exchange,
        request: ProduceRequest,
        slow: Mapping[TopicPartition, Slow] | None,
        first: FirstAppends | None,
        append: Callable[[Prepared], None],
    ) -> None:
        """Recompress batches in a thread, one after the other, ask the transaction coordinator about batches that begin
        a transaction in their partition, and then append."""
        loop = asyncio.get_running_loop()
        began_ms = self._clock.monotonic_ms()
        packed: dict[TopicPartition, memoryview | KafkaError] = {}
        for tp, (batch, config) in (slow or {}).items():
            packed[tp] = await loop.run_in_executor(self._packer, packed_ahead, batch, config)
            mark("batch-packed-off-the-loop")
        verified: dict[TopicPartition, Verification] = {}
        if first is not None:
            packed |= await self._transactions.verify(
                exchange.context, request.transactional_id or "", first, request.timeout_ms
            )
            verified = {tp: asked.verification for tp, asked in first.asked.items()}
        if self._replicas.trace is not None:
            self._replicas.trace.began(self._clock.monotonic_ms())  # again: other requests may have begun meanwhile
        refusal = None if first is None else first.refusal
        append(Prepared(packed, verified, refusal, self._clock.monotonic_ms() - began_ms))

    def _slow_to_pack(self, context: RequestContext, request: ProduceRequest) -> dict[TopicPartition, Slow]:
        """Return the batches whose codec is not that of their topic (`compression.type`) and whose recompression would
        take the event loop too long; none if the whole request is refused."""
        return {
            tp: (batch, log.config)
            for tp, log, batch in self._led_here(context, request)
            if is_slow_to_pack(batch, log.config)
        }

    def _led_here(
        self, context: RequestContext, request: ProduceRequest
    ) -> Iterator[tuple[TopicPartition, PartitionLog, memoryview]]:
        """Yield the batches that this broker leads and that pass the first checks, with their logs; none if the whole
        request is refused."""
        if _refusal(request) is not None:
            return
        seen: set[TopicPartition] = set()
        for wanted in request.topics:
            name, error, _ = self._writable_topic(context, wanted, noted=False)
            if error is not ErrorCode.NONE:
                continue
            for index, records in wanted.partitions:
                tp = TopicPartition(name, index)
                partition = self._replicas.partition(tp) if tp not in seen else None
                seen.add(tp)  # rule C1/one-partitions-batch-is-written-for-another-of-its-name
                if partition is None or partition.leader is None or partition.log is None or records is None:
                    continue
                if batch_fault(records, context.version, in_transaction=True) is None:
                    yield tp, partition.log, records

    def refuse_all(self, exchange: Exchange, body: memoryview, error: ErrorCode) -> bool:
        """Answer with `error` for every partition. Return False if the request has none."""
        request = read_request(body, exchange.context.version)
        if not any(topic.partitions for topic in request.topics):
            return False
        if request.acks == 0:
            exchange.drop_connection(f"a write with acks=0 failed: {error.name} {INJECTED}")
            return True
        result = ProduceResult(
            [
                (topic, [PartitionResult(index, error, INJECTED) for index, _records in topic.partitions])
                for topic in request.topics
            ],
            failed=True,
        )
        self._respond(exchange, result)
        return True

    def _append(self, exchange: Exchange, request: ProduceRequest, prepared: Prepared, done: Done) -> None:
        """Append the request's batches, or what `prepared` has in their place; `done` is called exactly once, perhaps
        before this returns.

        The views in the request are not used after this returns.

        Each partition succeeds or fails alone. Errors of a partition: INVALID_REQUIRED_ACKS,
        UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID, TOPIC_AUTHORIZATION_FAILED, INVALID_RECORD, INVALID_REQUEST
        (listed twice), REQUEST_TIMED_OUT (indeterminate: the batch may be committed), and errors of the replica's
        append (rule B9).
        """
        pending, context = _Pending(done), exchange.context
        exchange.explained_by(lambda: self._explain(request.acks, pending))
        deadline_ms = self._clock.monotonic_ms() + HOLD_MS_MAX
        seen: set[TopicPartition] = set()
        packed, verified, refusal, spent_ms = prepared
        refusal = refusal or _refusal(request)
        in_transaction = request.transactional_id is not None
        for wanted in request.topics:
            results: list[PartitionResult] = []
            pending.result.append((wanted, results))
            name, error, message = self._writable_topic(context, wanted) if refusal is None else ("", *refusal)
            for index, records in wanted.partitions:
                result = PartitionResult(index, error, message)
                results.append(result)
                tp = TopicPartition(name, index)
                ready = packed.get(tp, records)
                if (
                    error is not ErrorCode.NONE
                    or not self._acceptable(tp, records, context.version, in_transaction, result)
                    or not _is_packed(ready, result)
                    or not self._once_and_in_time(tp, ready, seen, deadline_ms, result)
                ):
                    pending.failed = True
                    if records is not None:
                        self._replicas.note_refusal(
                            wanted.name or wanted.topic_id or name, index, records, result.error
                        )
                    continue
                assert isinstance(ready, memoryview)  # _acceptable and _is_packed say so
                pending.left += 1
                ended = _PartitionAppend(self._image, pending, result, tp)
                append = self._replicas.append(tp, ready, request.acks, ended, verified.get(tp) if verified else None)
                if append is not None:
                    pending.appends.append((tp, append))
        if pending.left > 1 and pending.appends:
            pending.ticket = self._deadlines.add(max(request.timeout_ms - spent_ms, 0), pending.expire)
        pending.one_ended()

    def _writable_topic(
        self, context: RequestContext, wanted: ProduceTopic, *, noted: bool = True
    ) -> tuple[str, ErrorCode, str]:
        """Return (name, NONE, "") for a topic that may be written, or ("", error, message)."""
        found = find_topic(self._image(), wanted.name, wanted.topic_id)
        name = wanted.name if isinstance(found, ErrorCode) else found.name
        if name is not None:
            action = Operation.WRITE, topic(name)
            if not self._authorizer.authorize(context, (action,), noted=noted)[0]:
                # A topic requested by id may be one whose name the principal must not learn.
                denied = refusal(context, *action)
                message = denied.message if wanted.name else f"{context.principal} may not WRITE that topic"
                return "", denied.code, message
        if name in INTERNAL_TOPICS:  # rule A20/clients-write-the-audit
            return "", ErrorCode.INVALID_TOPIC_EXCEPTION, f"only the cluster itself writes to {name}"
        if not isinstance(found, ErrorCode):
            return found.name, ErrorCode.NONE, ""
        if wanted.name is None:
            return "", found, "no topic has this id"
        fault = topic_name_fault(wanted.name)
        if fault:
            return "", ErrorCode.INVALID_TOPIC_EXCEPTION, fault
        return "", found, f"topic {wanted.name!r} does not exist; to create it: {create_command(wanted.name)}"

    def _acceptable(
        self,
        tp: TopicPartition,
        records: memoryview | None,
        version: int,
        in_transaction: bool,
        result: PartitionResult,
    ) -> bool:
        """Check that the partition exists and has exactly one batch, of format 2; else set the error in `result`. The
        log checks the batch itself."""
        fault = batch_fault(records, version, in_transaction=in_transaction)
        if self._image().partition(*tp) is None:
            fault = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{tp} does not exist"
        if fault is not None:
            result.error, result.message = fault
            return False
        return True

    def _once_and_in_time(
        self,
        tp: TopicPartition,
        batch: memoryview | KafkaError | None,
        seen: set[TopicPartition],
        deadline_ms: float,
        result: PartitionResult,
    ) -> bool:
        """Check that the request names the partition once, and that it has not held the event loop for too long or
        this batch takes hardly any time; else set the error in `result`."""
        if tp in seen:
            result.error, result.message = ErrorCode.INVALID_REQUEST, f"{tp} stands in the request twice"
            return False
        seen.add(tp)
        late = self._clock.monotonic_ms() > deadline_ms
        if late and isinstance(batch, memoryview) and self._takes_long(tp, batch):
            result.error = ErrorCode.REQUEST_TIMED_OUT
            result.message = "unpacking and packing this request took too long: send this batch again"
            return False
        return True

    def _takes_long(self, tp: TopicPartition, batch: memoryview) -> bool:
        """True if the batch must be decompressed, or recompressed with its topic's codec, in the event loop."""
        partition = self._replicas.partition(tp)
        stored = None if partition is None or partition.log is None else partition.log.config.stored_codec
        attributes = batch[ATTRIBUTES_LOW_POSITION]
        return bool(attributes & CODEC_MASK) or needs_packing(attributes, stored)

    def _explain(self, acks: int, pending: _Pending) -> dict[str, object]:
        """Return log fields of a slow request: acks, partitions, and the append that it waits or waited for last."""
        names = (f"{self._name_of(wanted)}-{one.index}" for wanted, parts in pending.result for one in parts)
        count = sum(len(parts) for _, parts in pending.result)
        figures: dict[str, object] = {"acks": acks, "topic_partitions": some_of(names, count)}
        last = next((waiting for waiting in pending.appends if not waiting[1].ended), pending.last)
        if last is not None and acks == ACKS_ALL:
            tp, append = last
            partition = self._replicas.partition(tp)
            wait = "" if partition is None else partition.wait_of(append)
            figures["waited_for"] = f"{tp}: {wait}" if wait else ""
        return figures

    def _name_of(self, wanted: ProduceTopic) -> object:
        found = find_topic(self._image(), wanted.name, wanted.topic_id)
        return wanted.name or (wanted.topic_id if isinstance(found, ErrorCode) else found.name)

    def _respond(self, exchange: Exchange, result: ProduceResult) -> None:
        context = exchange.context
        body = write_response(
            context.version,
            result.topics,
            tell_replicas=context.peer.software_name == OWN_CLIENT,
            throttle_ms=exchange.throttle_ms(),
            end_tags=self._end_tags(exchange, result),
        )
        exchange.respond([body])

    def _end_tags(self, exchange: Exchange, result: ProduceResult) -> bytes:
        if not result.failed or exchange.context.version < LEADER_SINCE:
            return NO_TAGS
        leaders = [partition.leader_id for _, partitions in result.topics for partition in partitions]
        return self._brokers.node_endpoints(exchange.context, leaders)


def _refusal(request: ProduceRequest) -> Refusal | None:
    """Return the error for which no partition of the request may be written, or None."""
    if request.acks not in ACKS:
        return ErrorCode.INVALID_REQUIRED_ACKS, f"acks={request.acks}: -1 (all), 0 and 1 are possible"
    return None


def _point_to_leader(image: MetadataImage, result: PartitionResult, tp: TopicPartition) -> None:
    """Add the current leader to a NOT_LEADER_OR_FOLLOWER result: then the client need not fetch metadata (KIP-951)."""
    if result.error is not ErrorCode.NOT_LEADER_OR_FOLLOWER:
        return
    partition = image.partition(tp.topic, tp.partition)
    if partition is not None:
        result.leader_id = partition.leader
        result.leader_epoch = partition.leader_epoch


def _is_packed(ready: memoryview | KafkaError | None, result: PartitionResult) -> bool:
    """Check that the preparation did not end with an error for this batch; else set the error in `result`."""
    if isinstance(ready, KafkaError):
        result.error, result.message = ready.code, ready.message or str(ready)
        return False
    return True


def _first_fault(result: ProduceResult) -> str:
    for wanted, partitions in result.topics:
        for partition in partitions:
            if partition.error is not ErrorCode.NONE:
                return f"{wanted.name or wanted.topic_id}-{partition.index}: {partition.error.name} {partition.message}"
    return ""


def batch_fault(records: memoryview | None, version: int, *, in_transaction: bool = False) -> Refusal | None:
    """Return the error of Kafka's `ProduceRequest.validateRecords` for these records; None: they are valid.

    `in_transaction`: the request has a transactional id, for which the client was authorized.
    """
    if records is None or len(records) == 0:
        return ErrorCode.INVALID_RECORD, "a produce request must have exactly one record batch for each partition"
    size = len(records)
    if size > MAGIC_POSITION and records[MAGIC_POSITION] != MAGIC:
        code = ErrorCode.INVALID_RECORD if records[MAGIC_POSITION] < MAGIC else ErrorCode.CORRUPT_MESSAGE
        return code, f"record batches of format {records[MAGIC_POSITION]} are not accepted, only of format {MAGIC}"
    if size < HEADER_SIZE:
        return ErrorCode.CORRUPT_MESSAGE, f"{size} bytes are no record batch: its header alone has {HEADER_SIZE}"
    length = announced_size(records)
    if length > size:
        return ErrorCode.CORRUPT_MESSAGE, f"the record batch claims {length} bytes, {size} were sent"
    if length < HEADER_SIZE:
        return (
            ErrorCode.CORRUPT_MESSAGE,
            f"the record batch claims {length} bytes, its header alone has {HEADER_SIZE}",
        )
    if length < size:
        why = "a produce request must have exactly one record batch for each partition"
        return _unless_corrupt(records[:length], ErrorCode.INVALID_RECORD, why)
    attributes = records[ATTRIBUTES_LOW_POSITION]
    if attributes & _RARE_BITS:
        if attributes & CODEC_MASK == Codec.ZSTD and version < ZSTD_VERSION_MIN:
            why = f"zstd needs version {ZSTD_VERSION_MIN} of Produce (KIP-110)"
            return _unless_corrupt(records, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, why)
        if attributes & TRANSACTIONAL_BIT and not in_transaction:  # rule C5/transactions-without-an-id
            why = "a batch of a transaction comes in a request with its transactional id"
            return _unless_corrupt(records, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, why)
    return None


def _unless_corrupt(batch: memoryview, code: ErrorCode, why: str) -> tuple[ErrorCode, str]:
    """Return (code, why) if the batch's CRC is right, else the CRC's error, on which the producer sends it again."""
    try:
        verify_crc(batch)
    except KafkaError as error:
        return error.code, error.message
    return code, why


ROWS = (by_hand(Api.PRODUCE, (FIRST, LAST), ProduceHandler, large=True),)
