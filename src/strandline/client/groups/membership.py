"""A member of a group, whichever protocol it speaks: it joins, beats, and knows when it is none any more.

Heartbeats are a task of their own and go on while the caller handles records. A member that is not polled for
`max.poll.interval.ms` leaves by itself: it would hold its partitions without reading them.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from strandline.client import logs
from strandline.client.config import ConsumerConfig
from strandline.client.errors import ClosedError, MembershipLost
from strandline.client.groups.coordinator import GroupCoordinator, Identity
from strandline.client.session import Session
from strandline.client.tasks import Tasks
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError, ProtocolError, StrandlineError
from strandline.proto.ids import TopicPartition
from strandline.proto.kafka.apis import Api

EXPELLED = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.FENCED_MEMBER_EPOCH})
"""Errors that mean that the group continues without this member. Its partitions may belong to others."""


class Membership(ABC):
    """Membership of one consumer in its group.

    Invariants:
    - `generation` >= 0 exactly while the coordinator counts this member in, as far as it knows; under the consumer
      protocol it is the member's epoch.
    - No heartbeat is sent while a join is out: the join itself keeps the session.
    - `lost` is set once per membership that ended without being asked to, and taken by the consumer.
    """

    cooperative: bool
    """Whether partitions are kept over a rebalance."""
    interval_ms: float
    """Milliseconds between two heartbeats."""
    answer_ms: float
    """Milliseconds that a heartbeat is waited for."""

    def __init__(
        self, config: ConsumerConfig, session: Session, coordinator: GroupCoordinator, tasks: Tasks,
        on_change: Callable[[], None],
    ) -> None:  # fmt: skip
        self.member_id = ""
        self.generation = -1
        self.needs_join = False
        self.joining = False
        self.polling = False
        self.touched = False
        """Whether the caller has taken a record since the last heartbeat; a flag, for it is set with each record."""
        self.lost: StrandlineError | None = None
        self.fatal: StrandlineError | None = None
        self.last_error: StrandlineError | None = None
        self.group_topics: Mapping[str, int] = {}
        """Topics that the leader shared out, with their partition counts then; empty at the other members."""
        self._config = config
        self._clock = session.clock
        self._session = session
        self._coordinator = coordinator
        self._tasks = tasks
        self._on_change = on_change
        self._polled_ms = self._clock.monotonic_ms()
        self._beating: asyncio.Task[None] | None = None

    @property
    def identity(self) -> Identity:
        """Identity that a commit is signed with."""
        return Identity(self.member_id, self.generation, self._config.group_instance_id)

    def polled(self) -> None:
        """Note that the caller is alive."""
        self._polled_ms = self._clock.monotonic_ms()

    @property
    def is_polled(self) -> bool:
        """Whether the caller polls, or did within `max.poll.interval.ms`."""
        idle_ms = self._clock.monotonic_ms() - self._polled_ms
        return self.polling or self.touched or idle_ms <= self._config.max_poll_interval_ms

    # -- joining ----------------------------------------------------------------------------------------------------

    async def join(self, topics: tuple[str, ...], owned: tuple[TopicPartition, ...]) -> tuple[TopicPartition, ...]:
        """Join, or join anew, and return what this member is given.

        Args:
            topics: subscribed to.
            owned: held at this moment; under the eager protocol what was held before.

        Raises:
            ProtocolError: another member says what nobody can read.
            KafkaError: what another attempt does not mend; one of EXPELLED: all that was owned is lost.
        """
        failures = 0
        self.joining, self.needs_join = True, False
        try:
            while True:
                try:
                    partitions = await self._join_once(topics, owned)
                except KafkaError as error:
                    if error.code is ErrorCode.MEMBER_ID_REQUIRED or error.code is ErrorCode.REBALANCE_IN_PROGRESS:
                        continue  # how joins go: nothing is wrong
                    self.last_error = error
                    if not error.retriable:
                        raise
                    logs.group.info("group %s: joining it failed, tried again: %s", self._coordinator.group_id, error)
                except (ProtocolError, ClosedError):
                    raise
                except StrandlineError as error:
                    self.last_error = error
                else:
                    self._keep_beating()
                    return partitions
                failures += 1
                await asyncio.sleep(self._session.backoff_ms(failures) / 1000)
        finally:
            self.joining = False

    @abstractmethod
    async def _join_once(
        self, topics: tuple[str, ...], owned: tuple[TopicPartition, ...]
    ) -> tuple[TopicPartition, ...]:
        """One attempt. Raises what `join` does, and what another attempt may mend."""

    # -- staying ----------------------------------------------------------------------------------------------------

    def _keep_beating(self) -> None:
        if self._beating is None:
            group = self._coordinator.group_id
            self._beating = self._tasks.spawn(f"the heartbeats of group {group}", self._beat_on())

    async def _beat_on(self) -> None:
        failures = 0
        while True:
            wait_ms: float = self.interval_ms
            if failures:
                wait_ms = min(wait_ms, self._session.backoff_ms(failures))
            await asyncio.sleep(min(wait_ms, self._poll_left_ms()) / 1000)
            if self.touched:
                self.touched = False
                self.polled()
            if self.joining or self.generation < 0:
                failures = 0
                continue
            if self._poll_left_ms() <= 0:
                await self._leave_idle()
                continue
            try:
                await self._beat()
                failures = 0
            except StrandlineError as error:
                self.last_error = error
                failures += 1
                level = logging.INFO if failures == 1 else logging.DEBUG
                logs.group.log(level, "group %s: a heartbeat failed: %s", self._coordinator.group_id, error)

    def _poll_left_ms(self) -> float:
        """Milliseconds until the caller has not polled for too long. While a join is out there is nothing to leave."""
        if self.polling or self.joining or self.generation < 0:
            return float("inf")
        return max(self._polled_ms + self._config.max_poll_interval_ms - self._clock.monotonic_ms(), 0.0)

    @abstractmethod
    async def _ask(self, identity: Identity) -> ErrorCode:
        """One heartbeat; the rest of the answer counts if the member still is this one. Raises StrandlineError."""

    async def _beat(self) -> None:
        identity = self.identity
        code = await self._ask(identity)
        if self.joining or self.identity != identity:
            return  # the answer is about what this member was before
        if code is ErrorCode.REBALANCE_IN_PROGRESS:
            self.needs_join = True
            self._on_change()
        elif code in EXPELLED:
            self.expelled(KafkaError(code, "the coordinator no longer counts this member in"))
        elif code is ErrorCode.FENCED_INSTANCE_ID:
            self.fail(KafkaError(code, "another consumer runs under this name (group.instance.id)"))
        else:
            self._coordinator.check(Api.HEARTBEAT, code)

    async def _leave_idle(self) -> None:
        interval = self._config.max_poll_interval_ms
        error = MembershipLost(
            f"no poll for max.poll.interval.ms={interval}: this member left its group; handle fewer records at a time "
            "(max.poll.records) or raise max.poll.interval.ms"
        )
        await self.leave(error)

    def expelled(self, error: StrandlineError) -> None:
        """Note that the group continues without this member. The next poll calls the listeners and joins again."""
        logs.group.warning("group %s: this consumer is no member any more: %s", self._coordinator.group_id, error)
        self._end(error)
        self.needs_join = True
        self.lost = self.last_error = error
        self._on_change()

    def fail(self, error: StrandlineError) -> None:
        """Note an error after which nothing that this consumer does makes it a member again."""
        logs.group.error("group %s: this consumer cannot go on: %s", self._coordinator.group_id, error)
        self.fatal = self.last_error = error
        self.generation = -1
        self._on_change()

    def _end(self, because: StrandlineError | None) -> None:
        """End the membership."""
        self.generation = -1

    # -- leaving ----------------------------------------------------------------------------------------------------

    @abstractmethod
    def _goodbye(self, reason: str) -> tuple[Api, Mapping[str, Any]] | None:
        """Request that tells the coordinator that this member leaves; None: there is nothing to tell."""

    async def leave(self, because: StrandlineError | None = None, timeout_ms: float = float("inf")) -> None:
        """Leave the group. Never raises for the network's sake: a coordinator that does not hear it finds out after the
        session."""
        goodbye = self._goodbye("the consumer is closed" if because is None else str(because)[:250])
        if because is not None:
            self.expelled(because)
        else:
            self._end(None)
        if goodbye is None:
            return
        api, values = goodbye
        wait_ms = min(self.answer_ms, timeout_ms)
        try:
            async with asyncio.timeout(wait_ms / 1000):
                answer = await self._coordinator.call(api, values, timeout_ms=self.answer_ms)
            self._coordinator.check(api, answer.error_code)
        except (StrandlineError, TimeoutError) as error:
            if isinstance(error, StrandlineError):
                self.last_error = error
            logs.group.warning(
                "group %s: the coordinator was not told that this member left, and waits for its session to end: %s",
                self._coordinator.group_id, error if str(error) else f"no answer within {wait_ms:.0f} ms",
            )  # fmt: skip

    async def stop(self) -> None:
        """Stop beating."""
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.wait([self._beating])
            self._beating = None
