"""Users that send: records with keys and headers, of any size, into memory that may be full; calls are cut short."""

from __future__ import annotations

import asyncio
import random
from functools import partial
from typing import Any

from strandline.chaos.checkers.history import Partition, Send, Status
from strandline.chaos.checkers.invariant import InvariantViolated
from strandline.chaos.checkers.users import Content, Headers, check_answered, check_memory, place_of_key
from strandline.chaos.services.topics import shown as keyed
from strandline.chaos.users.calls import CallInterrupted, CallMaker
from strandline.chaos.users.options import LATEST, ORDERS
from strandline.chaos.users.shared import COMPACTED_ID, Shared
from strandline.proto.errors import StrandlineError

_BURST_MAX = 12
_SIZES = (1, 30, 300, 2_500)
"""Sizes of values: up to one of these."""
_NAMES = ("", "id", "id", "trace", "größe", "x" * 60)
_LATEST_SHARE = 0.25
"""Share of the records that go into the compacted topic."""
_TOMBSTONES = 0.1
_FORGOTTEN = 0.03
"""Share of the futures that are cancelled by who got them."""
_TIMES_MS = (0, 0, -4_000, -500, 2_000)
"""Milliseconds by which a record's own time is off."""
_CLOSE_S = 60.0


def drawn_headers(rng: random.Random) -> Headers:
    """Any bytes, and names that come twice, or are empty."""
    if rng.random() < 0.5:
        return ()
    return tuple(
        (rng.choice(_NAMES), None if rng.random() < 0.2 else rng.randbytes(rng.randint(0, 20)))
        for _ in range(rng.randint(1, 4))
    )


class Writer:
    """One user with one producer after the other."""

    def __init__(self, shared: Shared, name: str, settings: dict[str, Any], wall_ms: Any) -> None:
        """`wall_ms`: the machine's time."""
        self._shared = shared
        self._name = name
        self._settings = settings | dict(shared.login)
        self._wall_ms = wall_ms
        self._groups = 0
        self._sent: dict[str, Any] = {}
        """The futures of one producer, by value."""
        self._alone = True
        """True if only one task sends with this producer."""

    async def live(self, hands: CallMaker) -> None:
        """Send until there are no more records to send."""
        number = 0
        while not self._shared.over:
            number += 1
            self._sent = {}
            producer = hands.producer(self._settings)
            await self._use(producer, f"{self._name}-{number}", hands)
            await self._close(producer, hands)

    async def _use(self, producer: Any, name: str, hands: CallMaker) -> None:
        """Use a producer for a while, by one or two tasks: each one's records keep their order."""
        tasks = 1 if hands.unsure else hands.rng.randint(1, 2)
        self._alone = tasks == 1
        work = [self._send_some(producer, f"{name}-{number}", hands) for number in range(tasks)]
        if tasks == 1:
            await work[0]
            return
        async with asyncio.TaskGroup() as group:
            for one in work:
                group.create_task(one)

    async def _send_some(self, producer: Any, name: str, hands: CallMaker) -> None:
        rng, shared = hands.rng, self._shared
        for _ in range(rng.randint(3, 20)):
            if shared.over:
                return
            await hands.sleep(rng.uniform(0, 2 * shared.options.gap_ms) / 1000)
            self._groups += 1
            for _ in range(rng.randint(1, _BURST_MAX)):
                if rng.random() < _LATEST_SHARE:
                    await self._send_latest(producer, hands)
                else:
                    await self._send(producer, name, hands)
            if rng.random() < 0.3:
                await self._flush(producer, hands)

    # --- sends ---

    async def _send(self, producer: Any, name: str, hands: CallMaker) -> None:
        rng, shared = hands.rng, self._shared
        value = self._next_value(rng, rng.choice(_SIZES))
        key = None if rng.random() < 0.2 else b"k%d" % rng.randrange(shared.options.keys)
        number: int | None = None
        if key is None or rng.random() < 0.1:
            number = rng.randrange(shared.options.partitions)
        where = Partition(ORDERS, place_of_key(key or b"", shared.options.partitions) if number is None else number)
        content = self._content(key, rng)
        shared.ledger.contents[value] = content
        send = Send(name, where, value, group=self._groups, invoked_ms=shared.now_ms())
        shared.history.send(send)
        status: Status | None = None
        try:
            future = await hands.call(
                producer.send, ORDERS, value.encode(), key=key, headers=content.headers, partition=number,
                timestamp_ms=content.timestamp_ms,
            )  # fmt: skip
        except StrandlineError as error:
            shared.failed(error)
            status = Status.FAIL  # raised before the record was queued: it can be nowhere
        except CallInterrupted:
            status = Status.INFO if hands.unsure else Status.FAIL
        if status is not None:
            send.status, send.completed_ms = status, shared.now_ms()
            return
        self._sent[value] = future
        future.add_done_callback(partial(self._settled, send))
        if rng.random() < _FORGOTTEN and not hands.unsure:
            future.cancel()

    def _next_value(self, rng: random.Random, size_max: int) -> str:
        self._shared.values += 1
        if self._shared.values >= self._shared.options.records:
            self._shared.over = True
        return f"u{self._shared.values}".ljust(rng.randint(1, size_max), ".")

    def _content(self, key: bytes | None, rng: random.Random) -> Content:
        time_ms = None if rng.random() < 0.5 else int(self._wall_ms()) + rng.choice(_TIMES_MS)
        return Content(key, drawn_headers(rng), time_ms)

    def _settled(self, send: Send, future: Any) -> None:
        shared = self._shared
        send.completed_ms = shared.now_ms()
        error = None if future.cancelled() else future.exception()
        if error is not None or future.cancelled():
            send.status = Status.INFO
            if error is not None:
                shared.failed(error)
            return
        ack = future.result()
        if (ack.topic, ack.partition) != send.partition:
            facts = {"key": shared.ledger.contents[str(send.value)].key, "acked_in": ack.partition}
            shared.broken.append(InvariantViolated("KeyHasItsPartition", f"sent to {send.partition}", **facts))
        send.status = Status.OK
        if ack.offset >= 0:
            send.offset = ack.offset
            shared.ledger.ack(send.partition, ack.offset, str(send.value))

    async def _send_latest(self, producer: Any, hands: CallMaker) -> None:
        rng, shared = hands.rng, self._shared
        key = f"k{rng.randrange(shared.options.keys)}"
        value = None if rng.random() < _TOMBSTONES else self._next_value(rng, 300)
        content = self._content(key.encode(), rng)
        if value is not None:
            shared.ledger.contents[value] = content
        try:
            future = await hands.call(
                producer.send, LATEST, None if value is None else value.encode(), key=key.encode(),
                headers=content.headers, timestamp_ms=content.timestamp_ms,
            )  # fmt: skip
        except StrandlineError as error:
            shared.failed(error)
        except CallInterrupted:
            return
        else:
            self._sent[value or f"{key} is deleted"] = future
            future.add_done_callback(
                partial(self._settled_latest, keyed(key, None if value is None else value.encode()))
            )

    def _settled_latest(self, text: str, future: Any) -> None:
        error = None if future.cancelled() else future.exception()
        if error is not None:
            self._shared.failed(error)
        elif not future.cancelled() and future.result().offset >= 0:
            self._shared.latest.ack(COMPACTED_ID, 0, future.result().offset, text)

    # --- ends ---

    async def _flush(self, producer: Any, hands: CallMaker) -> None:
        """Check that what was sent before is answered, unless it took too long, or was cut short."""
        sent = dict(self._sent)
        limit_s = hands.rng.choice((None, None, 0.05, 5.0))
        try:
            await hands.call(producer.flush, limit_s)
        except StrandlineError as error:
            self._shared.failed(error)
        except CallInterrupted:
            pass
        else:
            self._check(sent, "flush")
            if self._alone:
                check_memory(self._name, memory_taken(producer))

    async def _close(self, producer: Any, hands: CallMaker) -> None:
        """Close in time for everything, in no time, or cut short: then it is closed once more."""
        limit_s = hands.rng.choice((_CLOSE_S, _CLOSE_S, 1.0, 0.0))
        try:
            try:
                await hands.call(producer.close, limit_s)
            except CallInterrupted:
                await hands.call(producer.close, limit_s, cut=False)
        except StrandlineError as error:
            self._shared.failed(error)
        self._check(self._sent, "close")
        self._sent = {}

    def _check(self, sent: dict[str, Any], call: str) -> None:
        """Check the outcome of a call that sent records. Raises InvariantViolated."""
        self._shared.acts[call] += 1
        check_answered(self._name, call, {value: future.done() for value, future in sent.items()})


def memory_taken(producer: Any) -> int:
    """Bytes of `buffer.memory`, of either kind of producer."""
    running = getattr(producer, "_running", None)
    core = getattr(producer, "_core", None) if running is None else running.core
    return 0 if core is None else int(core.accumulator.memory.used)
