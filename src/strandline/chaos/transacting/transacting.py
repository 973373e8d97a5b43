"""All transactional clients of a run together: their process, and what is judged in the end."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from itertools import count
from typing import Any

from strandline.chaos.checkers.history import Commit, History, Partition, Poll, Send, Status, Transaction
from strandline.chaos.checkers.invariant import InvariantViolated
from strandline.chaos.checkers.markers import TransactionChecks
from strandline.chaos.other_clients import FirstProtocolProducer
from strandline.chaos.transacting.options import ACCOUNTS, PIPELINES, STATEMENTS, TransactionOptions
from strandline.chaos.workload import Ports
from strandline.client.aio import Admin, Consumer, Producer
from strandline.client.types import ConsumerRecord, NewTopic
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError, StrandlineError
from strandline.proto.ids import TopicPartition

_BURST_MAX = 6
_CLOSE_S = 10.0
_PAUSE_S = 0.1
"""Pause after an error."""
_POLL_S = 0.5
_RECORD_MS = 5
"""Time of a transaction for each record of a pipeline: small batches on a slow network need some of it, and one that
does not fit into transaction.timeout.ms is never committed."""


class Transacting:
    """The transactional clients of one run, over all incarnations of their process.

    Attributes:
        over: there are no more records to send.
        errors: what went wrong in clients' eyes, counted: for the figures of a run.
        ended: transactions by how they ended.
    """

    def __init__(
        self, bootstrap: str, options: TransactionOptions, history: History, now_ms: Callable[[], float],
        login: Mapping[str, Any], *, checks: TransactionChecks,
    ) -> None:  # fmt: skip
        self.over = False
        self.errors: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()
        self._bootstrap = bootstrap
        self._options = options
        self._history = history
        self._now_ms = now_ms
        self._login = login
        self._checks = checks
        self._values = 0
        self._made = False
        self._incarnations = 0
        self._writing = 0
        self._acked: dict[Partition, int] = {}
        """Partition -> the end of what is acknowledged, in transactions that were committed or in none."""
        self._passed: dict[Partition, int] = {}
        """Partition of ACCOUNTS -> the offset that the pipelines have committed."""
        self._broken: BaseException | None = None

    def describe(self) -> str:
        """Description for the timeline."""
        options = self._options
        return (
            f"transactional clients: writers {list(options.writers)}, {options.abort_share:.0%} of the transactions "
            f"are aborted, {options.pipelines} pipelines, transaction.timeout.ms {options.timeout_ms}; "
            f"transaction.version {options.version}, {options.first_protocol:.0%} speak the first protocol; "
            f"{options.race or 'no race'}"
        )

    async def main(self, ports: Ports) -> None:
        """Run the process."""
        self._incarnations += 1
        self._writing = 0
        if not self._made:
            await self._make_topics(ports)
            self._made = True
        options, name = self._options, f"t{self._incarnations}"
        work: list[Coroutine[Any, Any, None]] = [
            self._write(ports, transactional_id, f"{name}-{number}")
            for number, transactional_id in enumerate(options.writers)
        ]
        work += [self._pipe(ports, f"{name}-pipeline-{number}") for number in range(options.pipelines)]
        work += [self._read(ports, f"{name}-reader-{level}", level) for level in ("read_committed", "read_uncommitted")]
        if options.pipelines:
            work.append(self._watch(ports))
        if options.plain:
            work.append(self._write_plainly(ports, f"{name}-plain"))
        try:
            async with asyncio.TaskGroup() as group:
                for one in work:
                    group.create_task(one)
        except BaseExceptionGroup as several:
            self._broken = several.exceptions[0]

    # --- clients ---

    def _producer(self, ports: Ports, kind: type[Producer] = Producer, **settings: Any) -> Producer:
        given = self._options.producer | settings | dict(self._login)
        return kind(self._bootstrap, clock=ports.clock, rng=ports.rng, **given)

    def _transactional(self, ports: Ports, transactional_id: str) -> Producer:
        timeout_ms, first = self._options.timeout_ms, self._options.first_protocol
        kind = FirstProtocolProducer if first and ports.rng.random() < first else Producer
        return self._producer(ports, kind, transactional_id=transactional_id, transaction_timeout_ms=timeout_ms)

    async def _begin(self, producer: Producer) -> None:
        """Begin a transaction. Raises StrandlineError."""
        await producer.begin_transaction()
        transactions = producer._started().transactions
        if transactions.protocol == 1:
            self._checks.of_first_protocol.add(transactions.id.number)

    def _consumer(self, ports: Ports, level: str, **settings: Any) -> Consumer:
        given = self._options.consumer | {"auto_offset_reset": "earliest", "isolation_level": level} | settings
        if "group_id" not in given:
            given = {key: value for key, value in given.items() if key in _WITHOUT_GROUP}
        return Consumer(self._bootstrap, clock=ports.clock, rng=ports.rng, **given, **self._login)

    def _failed(self, error: BaseException) -> None:
        self.errors[error.code.name if isinstance(error, KafkaError) else type(error).__name__] += 1

    async def _make_topics(self, ports: Ports) -> None:
        configs = {"min.insync.replicas": "2", "segment.bytes": self._options.segment_bytes}
        async with Admin(self._bootstrap, clock=ports.clock, rng=ports.rng, **self._login) as admin:
            for topic in (ACCOUNTS, STATEMENTS):
                while True:
                    try:
                        await admin.create_topics([NewTopic(topic, self._options.partitions, 3, configs)])
                        break
                    except StrandlineError as error:
                        self._failed(error)
                        if isinstance(error, KafkaError) and error.code is ErrorCode.TOPIC_ALREADY_EXISTS:
                            break
                    await asyncio.sleep(_PAUSE_S)

    # --- writers ---

    async def _write(self, ports: Ports, transactional_id: str, name: str) -> None:
        """One producer after the other, under one id; some are left open when the next one begins."""
        self._writing += 1
        left: list[Producer] = []
        number = 0
        while not self.over:
            number += 1
            producer = self._transactional(ports, transactional_id)
            try:
                await producer.init_transactions()
                for _ in range(ports.rng.randint(1, 12)):
                    if not self.over:
                        await self._transaction(producer, f"{name}-{number}", ports.rng)
            except StrandlineError as error:
                self._failed(error)
                await asyncio.sleep(_PAUSE_S)
            left.append(producer)
            if ports.rng.random() < 0.8:
                await self._close(left)
        await self._close(left)
        self._writing -= 1

    async def _close(self, producers: list[Producer]) -> None:
        while producers:
            try:
                await producers.pop().close(_CLOSE_S)
            except StrandlineError as error:
                self._failed(error)

    async def _transaction(self, producer: Producer, name: str, rng: random.Random) -> None:
        """One transaction of a writer. Raises StrandlineError."""
        await asyncio.sleep(rng.uniform(0, 2 * self._options.gap_ms) / 1000)
        transaction = self._history.transaction(Transaction(name, invoked_ms=self._now_ms()))
        await self._begin(producer)
        try:
            for number in range(rng.randint(1, _BURST_MAX)):
                if number and self._dawdles_inside(rng):
                    await producer.flush()
                    await self._dawdle(rng)
                where = Partition(ACCOUNTS, rng.randrange(self._options.partitions))
                await self._send(producer, Send(name, where, self._next_value()), transaction)
            if rng.random() < self._options.dawdle_share:
                await self._dawdle(rng)
        except StrandlineError:
            self._end(transaction, Status.FAIL)  # nobody commits what its producer does not
            raise
        await self._end_by(producer, transaction, commit=rng.random() >= self._options.abort_share)

    def _dawdles_inside(self, rng: random.Random) -> bool:
        return self._options.dawdle_ms is not None and rng.random() < self._options.dawdle_share

    async def _dawdle(self, rng: random.Random) -> None:
        dawdle_ms = self._options.dawdle_ms or 2 * self._options.timeout_ms
        await asyncio.sleep(rng.uniform(0, dawdle_ms) / 1000)

    async def _end_by(self, producer: Producer, transaction: Transaction, *, commit: bool) -> None:
        """Commit or abort. Raises StrandlineError; after a commit nobody knows whether it was taken."""
        try:
            await (producer.commit_transaction() if commit else producer.abort_transaction())
        except StrandlineError:
            self._end(transaction, Status.INFO if commit else Status.FAIL)
            raise
        self._end(transaction, Status.OK if commit else Status.FAIL)

    def _end(self, transaction: Transaction, status: Status) -> None:
        transaction.status, transaction.completed_ms = status, self._now_ms()
        self.ended[status.value] += 1
        if status is Status.OK:
            for step in transaction.steps:
                if isinstance(step, Send) and step.offset is not None:
                    self._acked[step.partition] = max(self._acked.get(step.partition, 0), step.offset + 1)

    def _next_value(self) -> str:
        self._values += 1
        self.over = self.over or self._values >= self._options.records
        return f"v{self._values}"

    async def _send(self, producer: Producer, send: Send, transaction: Transaction | None) -> None:
        send.invoked_ms = self._now_ms()
        if transaction is None:
            self._history.send(send)
        else:
            transaction.steps.append(send)
        try:
            future = await producer.send(
                send.partition.topic, str(send.value).encode(), partition=send.partition.number
            )
        except StrandlineError:
            send.status, send.completed_ms = Status.FAIL, self._now_ms()
            raise
        future.add_done_callback(partial(self._settled, send))

    def _settled(self, send: Send, future: Any) -> None:
        send.completed_ms = self._now_ms()
        error = None if future.cancelled() else future.exception()
        if error is not None or future.cancelled():
            send.status = Status.INFO
            return
        send.status = Status.OK
        send.offset = future.result().offset

    async def _write_plainly(self, ports: Ports, name: str) -> None:
        """Records outside of transactions, between those of the others."""
        producer = self._producer(ports)
        while not self.over:
            await asyncio.sleep(ports.rng.uniform(0, 4 * self._options.gap_ms) / 1000)
            where = Partition(ACCOUNTS, ports.rng.randrange(self._options.partitions))
            try:
                await self._send(producer, Send(name, where, self._next_value()), None)
            except StrandlineError as error:
                self._failed(error)
        await self._close([producer])

    # --- pipelines ---

    async def _pipe(self, ports: Ports, name: str) -> None:
        """Consume, transform, produce. Each input must give one output, and its offset is committed with it."""
        number = 0
        options = self._options
        most = min(options.consumer.get("max_poll_records", 500), max(options.timeout_ms // _RECORD_MS, 1))
        while True:
            number += 1
            producer = self._transactional(ports, name)
            consumer = self._consumer(
                ports, "read_committed", group_id=PIPELINES, enable_auto_commit=False, max_poll_records=most
            )
            try:
                await producer.init_transactions()
                consumer.subscribe([ACCOUNTS])
                for transaction in count():
                    await self._pipe_some(producer, consumer, f"{name}-{number}", transaction, ports.rng)
            except StrandlineError as error:
                self._failed(error)
            await self._close([producer])
            try:
                await consumer.close()
            except StrandlineError as error:
                self._failed(error)
            await asyncio.sleep(_PAUSE_S)

    async def _pipe_some(
        self, producer: Producer, consumer: Consumer, name: str, number: int, rng: random.Random
    ) -> None:
        """One transaction of a pipeline. Raises StrandlineError where consumer and producer must begin anew."""
        invoked_ms = self._now_ms()
        records = await consumer.poll(_POLL_S)
        if not records:
            return
        transaction = self._history.transaction(Transaction(name, invoked_ms=invoked_ms))
        transaction.steps.append(self._poll(name, records, invoked_ms, subscribed=True))
        await self._begin(producer)
        ends: dict[Partition, int] = {}
        try:
            for record in records:
                where = Partition(record.topic, record.partition)
                ends[where] = record.offset + 1
                source = (record.value or b"").decode()
                value = f"{source}.{name}-{number}"
                made = Send(name, Partition(STATEMENTS, record.partition), value, source=source)
                await self._send(producer, made, transaction)
            await producer.send_offsets(consumer)
        except StrandlineError:
            self._end(transaction, Status.FAIL)
            raise
        for where, offset in ends.items():
            transaction.steps.append(Commit(name, PIPELINES, where, offset, status=Status.OK, invoked_ms=invoked_ms))
        await self._end_by(producer, transaction, commit=rng.random() >= self._options.abort_share / 2)
        if transaction.status is Status.FAIL and self._options.goes_back:
            await self._go_back(consumer)
        elif transaction.status is Status.FAIL:
            raise KafkaError(ErrorCode.TRANSACTION_ABORTABLE, "aborted by the draw: what was read is read again")

    async def _go_back(self, consumer: Consumer) -> None:
        """Let a consumer read again from where its group has committed. Raises StrandlineError."""
        for place, stored in (await consumer.committed(consumer.assignment())).items():
            if stored is None:
                consumer.seek_to_beginning(place)
            else:
                consumer.seek(place, stored.offset)

    async def _watch(self, ports: Ports) -> None:
        """Hear how far the pipelines have come."""
        consumer = self._consumer(ports, "read_committed", group_id=PIPELINES, enable_auto_commit=False)
        places = [place for place in self._places if place.topic == ACCOUNTS]
        while True:
            await asyncio.sleep(_POLL_S)
            try:
                found = await consumer.committed(places)
            except StrandlineError as error:
                self._failed(error)
                continue
            for place, stored in found.items():
                if stored is not None:
                    self._passed[Partition(*place)] = stored.offset

    # --- readers ---

    def _poll(
        self, name: str, records: list[ConsumerRecord], invoked_ms: float, *, level: str = "read_committed",
        subscribed: bool = False, final: bool = False,
    ) -> Poll:  # fmt: skip
        places = [
            (Partition(record.topic, record.partition), record.offset, (record.value or b"").decode())
            for record in records
        ]
        uncommitted = level == "read_uncommitted"
        return Poll(
            name, places, subscribed=subscribed, invoked_ms=invoked_ms, completed_ms=self._now_ms(), final=final,
            uncommitted=uncommitted,
        )  # fmt: skip

    @property
    def _places(self) -> list[TopicPartition]:
        numbers = range(self._options.partitions)
        return [TopicPartition(topic, number) for topic in (ACCOUNTS, STATEMENTS) for number in numbers]

    async def _read(self, ports: Ports, name: str, level: str) -> None:
        consumer = self._consumer(ports, level)
        consumer.assign(self._places)
        while True:
            invoked_ms = self._now_ms()
            try:
                records = await consumer.poll(_POLL_S)
            except StrandlineError as error:
                self._failed(error)
                await asyncio.sleep(_PAUSE_S)
                continue
            if records:
                self._history.poll(self._poll(name, records, invoked_ms, level=level))

    # --- the end ---

    def check(self) -> None:
        """Raises what has broken a client."""
        if self._broken is not None:
            raise self._broken

    @property
    def open(self) -> list[str]:
        """Names of what is not done yet."""
        if not self._made:
            return ["their topics are not made"]
        writing = [f"{self._writing} writers have not ended"] if self._writing or not self.over else []
        behind = [
            f"the pipelines have passed {self._passed.get(where, 0)} of {end} in {where}"
            for where, end in self._acked.items()
            if self._options.pipelines and where.topic == ACCOUNTS and self._passed.get(where, 0) < end
        ]
        return writing + behind

    def figures(self) -> dict[str, object]:
        """Counts of what was tried."""
        return {"sent": self._values, "ended": dict(self.ended), "errors": dict(sorted(self.errors.items()))}

    async def look_at_the_end(self, ports: Ports) -> None:
        """Read everything once more by a fresh reader of committed data, and hold it against the logs.

        Raises:
            InvariantViolated
        """
        found: dict[Partition, dict[int, str]] = {Partition(*place): {} for place in self._places}
        async with self._consumer(ports, "read_committed") as consumer:
            consumer.assign(self._places)
            ends = await consumer.end_offsets(self._places)
            while any([await consumer.position(place) < end for place, end in ends.items()]):
                invoked_ms = self._now_ms()
                records = await consumer.poll(_POLL_S)
                self._history.poll(self._poll("transacting-final", records, invoked_ms, final=True))
                for record in records:
                    found[Partition(record.topic, record.partition)][record.offset] = (record.value or b"").decode()
        self._checks.check_ended()
        for where, seen in found.items():
            visible = self._checks.log(str(where)).visible
            if seen != visible:
                wrong = sorted(set(seen.items()) ^ set(visible.items()))[:5]
                facts = {"partition": str(where), "read": len(seen), "committed": len(visible), "wrong": wrong}
                raise InvariantViolated("CommittedIsRead", "a reader of committed data sees other records", **facts)
        self._check_whole({value for seen in found.values() for value in seen.values()})

    def _check_whole(self, visible: set[str]) -> None:
        """Check that of each transaction all that was acknowledged is there, or nothing. Raises InvariantViolated."""
        for transaction in self._history.transactions:
            sent = {str(step.value) for step in transaction.steps if isinstance(step, Send)}
            acked = {str(step.value) for step in transaction.steps if isinstance(step, Send) and step.acked}
            if sent & visible and acked - visible:
                facts = {"there": sorted(sent & visible)[:5], "not_there": sorted(acked - visible)[:5]}
                message = "a part of a transaction is committed"
                raise InvariantViolated("AllOrNothing", message, process=transaction.process, **facts)


_WITHOUT_GROUP = (
    "fetch_max_wait_ms",
    "request_timeout_ms",
    "max_poll_records",
    "default_api_timeout_ms",
    "auto_offset_reset",
    "isolation_level",
)
"""Settings of consumers that are in no group."""
