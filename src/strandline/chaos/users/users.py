"""All users of a run together: their process, what is watched meanwhile, and what is judged in the end."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from strandline.chaos.checkers.history import History, Partition
from strandline.chaos.checkers.users import ConsumedRecord
from strandline.chaos.services.topics import shown as keyed
from strandline.chaos.sim.loop import SimLoop
from strandline.chaos.sim.process import current_process
from strandline.chaos.sim.threads import Threads
from strandline.chaos.users.calls import Callers, CallMaker, Coroutines
from strandline.chaos.users.calls import by_thread as run_by_thread
from strandline.chaos.users.grouped import Buyer
from strandline.chaos.users.options import BUYERS, COMPACTS, LATEST, ORDERS, SAFE, UserOptions
from strandline.chaos.users.reading import Reader
from strandline.chaos.users.shared import COMPACTED_ID, Shared, shown
from strandline.chaos.users.writing import Writer
from strandline.chaos.workload import Ports
from strandline.client.aio import Admin, Consumer
from strandline.client.types import NewTopic
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError, StrandlineError
from strandline.proto.ids import TopicPartition

WATCH_S = 0.5


class Users:
    """The users of one run, over all incarnations of their process."""

    def __init__(
        self, bootstrap: str, options: UserOptions, history: History, now_ms: Callable[[], float],
        login: Mapping[str, Any],
    ) -> None:  # fmt: skip
        self.shared = Shared(bootstrap, options, history, now_ms, login)
        self._options = options
        self._committed: dict[Partition, int] = {}
        self._made = False
        self._incarnations = 0
        self._writing = 0
        self._twins = options.twins
        self._threads: Threads | None = None

    def describe(self) -> str:
        """Description for the timeline."""
        options = self._options
        room = [one["buffer_memory"] for one in options.producers]
        read = [one or "plain" for one in options.readers]
        return (
            f"users: {len(options.producers)} with buffer.memory {room}, {options.keys} keys; readers {read}; members "
            f"that commit {list(options.members)}; {options.cut_share:.0%} of the calls are cut short"
            + ("; some by threads" if options.twins else "")
        )

    async def main(self, ports: Ports) -> None:
        """Run the users' process."""
        self._incarnations += 1
        self._writing = 0
        self.shared.stands.clear()
        if not self._made:
            await self._make_topics(ports)
            self._made = True
        work: list[Coroutine[Any, Any, None]] = [self._watch(ports)]
        kinds: list[Sequence[Writer | Reader]] = [self._writers(ports), self._readers(ports), self._buyers(ports)]
        for users in kinds:
            last = len(users) - 1
            work += [self._live(ports, user, by_thread=self._twins and at == last) for at, user in enumerate(users)]
        try:
            async with asyncio.TaskGroup() as group:
                for one in work:
                    group.create_task(one)
        except BaseExceptionGroup as several:
            first: BaseException = several
            while isinstance(first, BaseExceptionGroup):
                first = first.exceptions[0]
            self.shared.broken.append(first)

    def _writers(self, ports: Ports) -> list[Writer]:
        return [
            Writer(self.shared, f"user-{self._incarnations}-{number}", settings, ports.clock.wall_ms)
            for number, settings in enumerate(self._options.producers)
        ]

    def _readers(self, ports: Ports) -> list[Reader]:
        return [
            Reader(self.shared, f"reader-{self._incarnations}-{number}", does, ports.clock.wall_ms)
            for number, does in enumerate(self._options.readers)
        ]

    def _buyers(self, ports: Ports) -> list[Buyer]:
        return [
            Buyer(self.shared, f"buyer-{self._incarnations}-{number}", commits, ports.clock.wall_ms)
            for number, commits in enumerate(self._options.members)
        ]

    async def _live(self, ports: Ports, user: Writer | Reader, *, by_thread: bool) -> None:
        """Make the user's calls, as coroutines, or by a thread."""
        shared = self.shared
        writes = isinstance(user, Writer)
        self._writing += writes
        if by_thread:
            threads = self._threads_of(ports)
            hands: CallMaker = Callers(threads, shared.bootstrap, shared.cut_share, shared.cut)
            await threads.run(lambda: run_by_thread(user.live(hands)))
        else:
            await user.live(Coroutines(ports, shared.bootstrap, shared.cut_share, shared.cut))
        self._writing -= writes

    def _threads_of(self, ports: Ports) -> Threads:
        """Threads of this incarnation of the process."""
        process, loop = current_process(), asyncio.get_running_loop()
        assert process is not None
        assert isinstance(loop, SimLoop)
        if process.threads is None:
            rng: random.Random = ports.rng
            process.threads = Threads(
                loop, process, clock=ports.clock, rng=rng, switch_points=self._options.switch_points
            )
        threads: Threads = process.threads
        self._threads = threads
        return threads

    async def _make_topics(self, ports: Ports) -> None:
        orders = NewTopic(ORDERS, self._options.partitions, 3, SAFE | {"segment.bytes": self._options.segment_bytes})
        async with Admin(self.shared.bootstrap, clock=ports.clock, rng=ports.rng, **self.shared.login) as admin:
            for new in (orders, NewTopic(LATEST, 1, 3, COMPACTS)):
                while True:
                    try:
                        await admin.create_topics([new])
                        break
                    except StrandlineError as error:
                        self.shared.failed(error)
                        if isinstance(error, KafkaError) and error.code is ErrorCode.TOPIC_ALREADY_EXISTS:
                            break
                    await asyncio.sleep(0.2)

    async def _watch(self, ports: Ports) -> None:
        """Check that every committed record was delivered to a consumer that has handled it. Raises
        InvariantViolated."""
        consumer = self._consumer(ports, group_id=BUYERS, enable_auto_commit=False)
        places = [TopicPartition(*where) for where in self.shared.partitions]
        while True:
            await asyncio.sleep(WATCH_S)
            try:
                found = await consumer.committed(places)
            except StrandlineError as error:
                self.shared.failed(error)
                continue
            for place, stored in found.items():
                if stored is not None:
                    self.shared.ledger.check_committed(Partition(*place), stored.offset)
                    self._committed[Partition(*place)] = stored.offset

    def _consumer(self, ports: Ports, **settings: Any) -> Consumer:
        given = {**self.shared.options.consumer, "auto_offset_reset": "earliest", **settings, **self.shared.login}
        return Consumer(self.shared.bootstrap, clock=ports.clock, rng=ports.rng, **given)

    # --- the end ---

    def check(self) -> None:
        """Raises InvariantViolated, or what has broken a user."""
        if self.shared.broken:
            raise self.shared.broken[0]

    @property
    def settled(self) -> bool:
        """True if the topics are made and all records have their answers; every reader has come to the end, and the
        group has committed it."""
        if not self._made or self._writing or not self.shared.over:
            return False
        return not self.open

    @property
    def open(self) -> list[str]:
        """Names of users who are not there yet."""
        ends = {where: self.shared.ledger.end(where) for where in self.shared.partitions}
        behind = [
            f"{name} stands at {stand.next.get(where)} of {end} in {where}"
            for name, stand in self.shared.stands.items()
            for where, end in ends.items()
            if (stand.next.get(where) or 0) < end
        ]
        uncommitted = [
            f"{self._committed.get(where)} of {end} is committed in {where}"
            for where, end in ends.items()
            if self._committed.get(where, 0) < end
        ]
        return ([] if self._made else ["the topics are not made"]) + behind + uncommitted

    def be_calm(self) -> None:
        """Faults have ended: what is sent is read, and nothing else is done."""
        self.shared.calm = self.shared.over = True

    def figures(self) -> dict[str, object]:
        """Counts of what was tried."""
        shared = self.shared
        return {
            "sent": shared.values,
            "acked": sum(map(len, shared.ledger.acked.values())),
            "done": sum(map(len, shared.ledger.done.values())),
            "acts": dict(sorted(shared.acts.items())),
            "cut": dict(sorted(shared.cut.items())),
            "errors": dict(sorted(shared.errors.items())),
            "switches": 0 if self._threads is None else self._threads.switches,
            "interrupts": 0 if self._threads is None else self._threads.interrupts,
        }

    async def look_at_the_end(self, ports: Ports) -> None:
        """Read everything once more by fresh clients, and judge it. Raises InvariantViolated."""
        ledger = self.shared.ledger
        orders = await self._whole(ports, ORDERS, self._options.partitions)
        ledger.check_lookups(orders)
        latest = await self._whole(ports, LATEST, 1)
        stored = {
            (0, one.offset): keyed((one.key or b"").decode(), one.value.encode() if one.value else None)
            for one in latest
        }
        self.shared.latest.check_compacted(COMPACTED_ID, stored, {})

    async def _whole(self, ports: Ports, topic: str, partitions: int) -> list[ConsumedRecord]:
        """All records, each checked."""
        found: list[ConsumedRecord] = []
        async with self._consumer(ports) as consumer:
            places = [TopicPartition(topic, number) for number in range(partitions)]
            consumer.assign(places)
            ends = await consumer.end_offsets(places)
            while any([await consumer.position(place) < end for place, end in ends.items()]):
                invoked_ms = self.shared.now_ms()
                records = [shown(one) for one in await consumer.poll(0.5)]
                self.shared.ledger.check_whole("final", [one for one in records if one.value])
                self.shared.note_poll("users-final", records, 0, invoked_ms=invoked_ms, final=True)
                found += records
        return found
