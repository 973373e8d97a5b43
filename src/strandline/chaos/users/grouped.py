"""Simulated consumers of a group: exactly the records that they got are committed, explicitly or automatically."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from strandline.chaos.checkers.history import Partition
from strandline.chaos.checkers.invariant import InvariantViolated
from strandline.chaos.checkers.users import ConsumedRecord
from strandline.chaos.users.calls import CallMaker
from strandline.chaos.users.options import BUYERS, ORDERS
from strandline.chaos.users.reading import Act, Reader
from strandline.chaos.users.shared import Shared
from strandline.proto.errors import StrandlineError
from strandline.proto.ids import TopicPartition

_CLOSE_SHARE = 0.7
"""Share of the ending members that are closed; the others are abandoned, like a member that hangs."""


class Buyer(Reader):
    """Member of the group that only seeks back, so that no record is skipped."""

    subscribed = True

    def __init__(self, shared: Shared, name: str, commits: str, wall_ms: Callable[[], float]) -> None:
        """`commits`: see `UserOptions.members`."""
        self._own = commits == "own"
        self._said: dict[Partition, set[int]] = {}
        """Partition -> offsets that this member has committed, or tried to, since the partition was assigned to it."""
        self._sure: set[Partition] = set()
        """Partitions in which a commit of this member succeeded, so that the group's offset is one of `_said`."""
        self._held: list[ConsumedRecord] = []
        """Records of the last call, not yet handled. The next call for records, or a commit, makes them handled."""
        self._fresh: set[Partition] = set()
        """Partitions from which it got records since their assignment or its last seek."""
        super().__init__(shared, name, "", wall_ms)

    def weights(self) -> list[tuple[int, Act]]:
        """(relative frequency, act) of each act of the member."""
        acts: list[tuple[int, Act]] = [
            (40, self._poll), (12, self._step), (12, self._poll_columns), (5, self._pause), (9, self._resume),
            (3, self._seek_back), (5, self._position),
        ]  # fmt: skip
        if not self._own:
            return acts
        return [*acts, (12, self._commit), (4, self._commit_some), (3, self._commit_later), (5, self._read_back)]

    def settings(self) -> dict[str, Any]:
        """Settings of its consumers."""
        own: dict[str, Any] = {"enable_auto_commit": False} if self._own else {}
        return {**super().settings(), **self.shared.options.group, "group_id": BUYERS, **own}

    async def begin(self, consumer: Any, hands: CallMaker) -> None:
        """Let the consumer join the group."""
        stand, said = self.stand, self._said
        stand.begins = self.shared.ledger.check_committed
        said.clear()
        self._sure.clear()
        self._fresh.clear()
        self._held = []

        def assigned(partitions: Iterable[TopicPartition]) -> None:
            places = [Partition(*one) for one in partitions]
            stand.hold(places)
            forget(places)

        def gone(partitions: Iterable[TopicPartition]) -> None:
            places = [Partition(*one) for one in partitions]
            stand.lose(places)
            forget(places)

        def forget(places: Iterable[Partition]) -> None:
            for place in places:
                said.pop(place, None)
                self._sure.discard(place)
                self._fresh.discard(place)

        listeners = {"on_assigned": assigned, "on_revoked": gone, "on_lost": gone}
        await hands.call(consumer.subscribe, ORDERS, cut=False, **listeners)

    async def leave(self, consumer: Any, hands: CallMaker) -> None:
        """Close the consumer, or abandon it, like a member that hangs."""
        if hands.rng.random() < _CLOSE_SHARE:
            await super().leave(consumer, hands)

    async def calm_down(self, consumer: Any, hands: CallMaker) -> None:
        """Read and commit everything that is left."""
        await super().calm_down(consumer, hands)
        if self._own:
            try:
                await self._commit(consumer, hands)
            except StrandlineError as error:
                self.shared.failed(error)

    async def call_for_records(self, hands: CallMaker, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call for records. The records of the call before count as handled."""
        self._finish()
        return await super().call_for_records(hands, function, *arguments)

    def _finish(self) -> None:
        self.shared.ledger.finish(self._held)
        self._held = []

    def take(self, records: list[ConsumedRecord], invoked_ms: float) -> None:
        """Take the records that one call gave. Raises InvariantViolated."""
        super().take(records, invoked_ms)
        self._held = records
        self._fresh.update(one.partition for one in records)

    async def _seek_back(self, consumer: Any, hands: CallMaker) -> None:
        for where in self._some(hands.rng):
            stood = self.stand.next.get(where)
            if stood is not None:
                self._fresh.discard(where)
                await self._seek_to(consumer, hands, where, hands.rng.choice((0, max(stood - 5, 0), stood)))

    # --- commits ---

    def _stands(self) -> dict[Partition, int]:
        return {where: offset for where, offset in self.stand.next.items() if offset is not None}

    def _say(self, offsets: dict[Partition, int]) -> None:
        self._finish()
        for where, offset in offsets.items():
            self._said.setdefault(where, set()).add(offset)

    async def _commit(self, consumer: Any, hands: CallMaker) -> None:
        """Commit all delivered records of the partitions that this member still has."""
        generation, stands, fresh = self.stand.generation, self._stands(), set(self._fresh)
        self._say(stands)
        await hands.call(consumer.commit)
        if generation == self.stand.generation:
            self._sure |= fresh
            if hands.rng.random() < 0.5:
                await self._read_back(consumer, hands)

    async def _commit_some(self, consumer: Any, hands: CallMaker) -> None:
        """Commit explicit offsets: the current position, or a lower one."""
        some = {where: hands.rng.randint(0, offset) for where, offset in self._stands().items()}
        generation = self.stand.generation
        self._say(some)
        if some:
            await hands.call(consumer.commit, {TopicPartition(*where): offset for where, offset in some.items()})
            if generation == self.stand.generation:
                self._sure.update(some)

    async def _commit_later(self, consumer: Any, hands: CallMaker) -> None:
        stands = self._stands()
        self._say(stands)

        def answered(_offsets: object, error: BaseException | None) -> None:
            if error is not None:
                self.shared.failed(error)

        await hands.call(consumer.commit_async, None, answered, cut=False)

    async def _read_back(self, consumer: Any, hands: CallMaker) -> None:
        """Check that the group's offset is the one that this member committed last, or one whose commit was
        interrupted."""
        generation, member = self.stand.generation, consumer.state.generation
        asked = {where: set(self._said[where]) for where in sorted(self._sure) if where in self.stand.next}
        if not asked or member < 0:
            return
        found = await hands.call(consumer.committed, [TopicPartition(*where) for where in asked])
        if generation != self.stand.generation or member != consumer.state.generation:
            return
        self.shared.acts["read back"] += 1
        for where, said in asked.items():
            stored = found[TopicPartition(*where)]
            if stored is None or stored.offset not in said | self._said[where]:
                offset = None if stored is None else stored.offset
                facts = {"who": self.stand.who, "partition": str(where), "committed": offset}
                facts["said"] = sorted(self._said[where])[-10:]
                raise InvariantViolated("CommitIsWhatWasSaid", "another offset is committed", **facts)
