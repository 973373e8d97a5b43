"""A consumer's life in its group: what it subscribes to, rebalances between polls, topics that come and grow.

Everything that takes partitions away or gives them happens inside `step`, which `poll` calls: while a caller handles
records, nothing is taken from him except by the coordinator itself, and then his commits are refused.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from inspect import isawaitable
from typing import Protocol
from uuid import UUID

from strandline.client import logs
from strandline.client.config import ConsumerConfig
from strandline.client.errors import ClientError
from strandline.client.fetcher import PartitionState
from strandline.client.groups.classic import ClassicMembership
from strandline.client.groups.commits import OVER, PARTING_COMMIT_MS, Beginnings, Commits
from strandline.client.groups.consumer_protocol import ConsumerMembership
from strandline.client.groups.coordinator import GroupCoordinator
from strandline.client.groups.membership import EXPELLED, Membership
from strandline.client.metadata import Metadata
from strandline.client.session import Session
from strandline.client.tasks import Tasks
from strandline.client.types import OffsetAndMetadata
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import ConfigError, KafkaError, StrandlineError
from strandline.proto.ids import TopicPartition
from strandline.proto.internal_topics import how_to_make

Listener = Callable[[list[TopicPartition]], object]
"""Function or coroutine function that is called with partitions."""
Invoke = Callable[[Listener, list[TopicPartition]], Awaitable[None]]
"""Caller of listeners: on the event loop, or, for blocking consumers, by the thread that polls."""

Topics = str | Sequence[str] | re.Pattern[str]


async def invoke(listener: Listener, partitions: list[TopicPartition]) -> None:
    """Call a listener here."""
    result = listener(partitions)
    if isawaitable(result):
        await result


@dataclass(frozen=True, slots=True)
class ConsumerState:
    """State of a consumer.

    Attributes:
        name: unassigned, assigned (by `assign`, no membership), joining, stable, rebalancing, unmatched (the pattern
            subscribed to matches no topic yet), lost, failed, closed.
        generation, member_id: of the membership; -1 and empty without one. A member that is unmatched is one under the
            classic protocol; under that of KIP-848 it joins when a topic matches.
        last_error: what went wrong last in the group, None if nothing ever did; it may be over.
        waits_for: in words, what has to come before there is anything to read; empty where nothing has to.
    """

    name: str
    generation: int = -1
    member_id: str = ""
    last_error: StrandlineError | None = None
    waits_for: str = ""

    def __str__(self) -> str:
        member = f" (generation {self.generation} as {self.member_id})" if self.generation >= 0 else ""
        waits = f": {self.waits_for}" if self.waits_for else ""
        return self.name + member + waits + ("" if self.last_error is None else f"; last error: {self.last_error}")


@dataclass
class Subscribed:
    """Topics that are subscribed to, and the listeners.

    Attributes:
        topics: the names, sorted; of a pattern those that exist, as far as known.
        pattern: None where names were given.
        on_assigned, on_revoked, on_lost: listeners; without `on_lost`, `on_revoked` is called with what is lost too.
    """

    topics: tuple[str, ...]
    pattern: re.Pattern[str] | None
    on_assigned: Listener | None
    on_revoked: Listener | None
    on_lost: Listener | None

    @classmethod
    def of(
        cls, topics: Topics, on_assigned: Listener | None, on_revoked: Listener | None, on_lost: Listener | None
    ) -> Subscribed:
        """Check and normalise a subscription. Raises ConfigError if there are no topics, or something other than
        names."""
        listeners = (on_assigned, on_revoked, on_lost or on_revoked)
        if isinstance(topics, re.Pattern):
            return cls((), topics, *listeners)
        names = (topics,) if isinstance(topics, str) else tuple(sorted(dict.fromkeys(topics)))
        if not names or not all(isinstance(name, str) and name for name in names):
            raise ConfigError("topics", topics, "one or more names of topics, or a compiled pattern")
        return cls(names, None, *listeners)

    @property
    def unmatched(self) -> str | None:
        """The pattern, while no topic is known that matches it; None otherwise, and of names."""
        return self.pattern.pattern if self.pattern is not None and not self.topics else None

    async def refresh(self, metadata: Metadata, timeout_ms: float) -> bool:
        """Look up which topics match the pattern now, and return whether others do than before.

        A pattern matches whole names, as in Kafka, and no internal topics. Raises what `Metadata.ask` does.
        """
        if self.pattern is None:
            return False
        answer = await metadata.ask(None, timeout_ms)
        found = tuple(
            sorted(
                entry.name
                for entry in answer.topics
                if entry.error_code is ErrorCode.NONE and not entry.is_internal and self.pattern.fullmatch(entry.name)
            )
        )
        changed, self.topics = found != self.topics, found
        return changed


Given = tuple[TopicPartition, ...]
Placed = Mapping[TopicPartition, OffsetAndMetadata | None]
"""Committed offsets of partitions whose topic is known; None: nothing is committed."""

_MISSING_TOPIC_MS = 1_000
"""Longest time between two looks for a subscribed topic that does not exist yet."""


class Holder(Protocol):
    """The consumer, as far as its group is concerned."""

    def assignment(self) -> list[TopicPartition]:
        """The partitions that it holds."""

    def topic_id(self, partition: TopicPartition) -> UUID | None:
        """Id of the topic that it reads as this partition; None: not known."""

    def take_up(self, partitions: Iterable[TopicPartition], placed: Placed) -> None:
        """Read these too: from there, or where `auto.offset.reset` says; what is not placed yet is to be looked up."""

    def give_up(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these no more, and drop what was fetched of them."""

    def wake_poll(self) -> None:
        """Wake a poll that waits."""


class GroupSession:
    """The group's side of one consumer. Runs on one event loop."""

    def __init__(
        self,
        config: ConsumerConfig,
        session: Session,
        holder: Holder,
        states: Mapping[TopicPartition, PartitionState],
        tasks: Tasks,
    ) -> None:
        assert config.group_id is not None
        self.subscribed: Subscribed | None = None
        self.invoke: Invoke = invoke
        self.coordinator = GroupCoordinator(session, config.group_id, config.request_timeout_ms)
        self.member: Membership
        if config.group_protocol == "consumer":
            self.member = ConsumerMembership(
                config, session, self.coordinator, tasks, owned=holder.assignment, on_change=holder.wake_poll
            )
        else:
            self.member = ClassicMembership(
                config, session, self.coordinator, tasks, counts=self._counts, on_change=holder.wake_poll
            )
        self.commits = Commits(
            config, session.metadata, self.coordinator, self.member,
            topic_id=holder.topic_id, subscribed=lambda: self.subscribed is not None,
            on_callback_error=self._callback_failed,
        )  # fmt: skip
        self.progress = self.commits.progress
        self.beginnings = Beginnings(
            states, self.commits, session.metadata, tasks,
            timeout_ms=config.default_api_timeout_ms, wake_poll=holder.wake_poll,
        )  # fmt: skip
        self.callback_error: BaseException | None = None
        """Exception of a `commit_async` callback, to raise at the next poll: wrapped into a ClientError, but SystemExit
        and the like unchanged (for `close` as well)."""
        self._config = config
        self._session = session
        self._holder = holder
        self._tasks = tasks
        self._joining: asyncio.Task[tuple[Given, Placed]] | None = None
        self._parting: asyncio.Task[None] | None = None
        """Commits what is done before partitions go. It outlives the poll that needs it."""
        self._unannounced: list[TopicPartition] = []
        """Taken up, and `on_assigned` was not called yet, or was cut short."""
        self._started = False
        self._stepping = False
        self._taking = False
        self._counts_seen: dict[str, int] = {}
        self._said_missing: frozenset[str] = frozenset()

    @property
    def state(self) -> ConsumerState:
        """State of the consumer."""
        member, wanted, waits_for = self.member, self.subscribed, ""
        if member.fatal is not None:
            name = "failed"
        elif member.lost is not None:
            name = "lost"
        elif wanted is None:
            name = "assigned" if self._holder.assignment() else "unassigned"
        elif self._joining is not None or member.needs_join:
            name = "joining" if member.generation < 0 else "rebalancing"
        elif wanted.unmatched is not None:
            name = "unmatched"
            age_ms = self._config.metadata_max_age_ms
            waits_for = f"no topic matches {wanted.unmatched!r}; looked for every {age_ms} ms (metadata.max.age.ms)"
        else:
            name = "stable"
            if missing := self._missing:
                names = ", ".join(map(repr, missing))
                waits_for = f"there is no topic {names}; looked for every {_MISSING_TOPIC_MS} ms"
        return ConsumerState(name, member.generation, member.member_id, member.last_error, waits_for)

    @property
    def restless(self) -> bool:
        """`step` has something to do; not for a listener that reads, inside of it."""
        return self.subscribed is not None and not self._stepping and self._unhandled

    @property
    def _unhandled(self) -> bool:
        member = self.member
        return (
            (member.needs_join and self._joining is None)
            or member.lost is not None
            or member.fatal is not None
            or (self._joining is not None and self._joining.done())
        )

    def start(self) -> None:
        """Start the background tasks, automatic commits and the search for topics. Call it once."""
        if not self._started:
            self._started = True
            self._session.metadata.subscribe(self._look_at_metadata)
            group = f"of group {self.coordinator.group_id}"
            if self._config.enable_auto_commit:
                self._tasks.spawn(f"the automatic commits {group}", self.commits.commit_now_and_then())
            self._tasks.spawn(f"the renewal of commits {group}", self.commits.renew_now_and_then())
            self._tasks.spawn(f"the look-out for topics {group}", self._watch_topics())

    def _callback_failed(self, error: BaseException) -> None:
        self.member.last_error = ClientError(f"a callback failed: {error!r}")
        self.member.last_error.__cause__ = error
        self.callback_error = self.member.last_error if isinstance(error, Exception) else error
        self._holder.wake_poll()

    def subscribe(self, wanted: Subscribed) -> None:
        """Read what the group gives of these topics from the next poll on."""
        self.subscribed = wanted
        self.member.needs_join = True

    # -- rebalances -------------------------------------------------------------------------------------------------

    async def step(self, until_ms: float) -> bool:
        """Do what the group wants done before records are handed out; False: it is not done by `until_ms` (monotonic),
        and another call goes on with it.

        Raises:
            KafkaError: FENCED_INSTANCE_ID and other ends; GROUP_AUTHORIZATION_FAILED, INCONSISTENT_GROUP_PROTOCOL and
                the like, after which poll may be called again.
            Exception: of a listener.
        """
        if self._stepping or self.subscribed is None:
            return True
        self._stepping = True
        try:
            while self._unhandled:
                if not await self._step(self.subscribed, until_ms):
                    return False
        finally:
            self._stepping = False
        return True

    async def _step(self, wanted: Subscribed, until_ms: float) -> bool:
        member = self.member
        if member.lost is not None:
            await self._drop_join()
            try:
                await self._take_away(wanted.on_lost)
            finally:
                if not self._holder.assignment():
                    member.lost, member.needs_join = None, self.subscribed is not None
            if self.subscribed is not wanted:
                return True  # the listener has unsubscribed
        if member.fatal is not None:
            await self._drop_join()
            await self._take_away(wanted.on_lost)
            raise member.fatal
        if self._joining is None:
            return await self._begin(wanted, until_ms)
        return not self._joining.done() or await self._complete(wanted, self._joining, until_ms)

    async def _parted(self, until_ms: float) -> bool:
        """Commit what is done before partitions go; False: not by then."""
        if self._parting is None:
            self._parting = self._tasks.spawn("a commit before a rebalance", self.commits.commit_parting())
            self._parting.add_done_callback(lambda _: self._holder.wake_poll())
        if not self._parting.done():
            await asyncio.wait([self._parting], timeout=self._left_ms(until_ms) / 1000)
        if not self._parting.done():
            return False
        self._parting = None
        return True

    async def _begin(self, wanted: Subscribed, until_ms: float) -> bool:
        """Under the eager protocol everything is given up before the join; under the cooperative one nothing."""
        owned = tuple(self._holder.assignment())
        if not await self._parted(until_ms):
            return False
        if not self.member.cooperative:
            await self._take_away(wanted.on_revoked)
            if self.subscribed is not wanted:
                return True  # the listener has unsubscribed, or wants others
        self._joining = asyncio.get_running_loop().create_task(self._join(wanted, owned))
        self._joining.add_done_callback(lambda _: self._holder.wake_poll())
        return True

    async def _join(self, wanted: Subscribed, owned: tuple[TopicPartition, ...]) -> tuple[Given, Placed]:
        if wanted.unmatched is not None:
            await self.coordinator.retrying(self._refresh, self._config.default_api_timeout_ms)
        self._session.metadata.set_wanted(wanted.topics)
        given = await self.member.join(wanted.topics, owned)
        kept = frozenset(owned if self.member.cooperative else ())
        new = [item for item in given if item not in kept]
        if not all(self._session.metadata.is_known(item.topic) for item in new):
            await self._session.metadata.update(self._config.default_api_timeout_ms)
        return given, await self.commits.stored(new, self._config.default_api_timeout_ms)

    def _outcome(self, done: asyncio.Task[tuple[Given, Placed]]) -> tuple[Given, Placed] | None:
        """The outcome of the join; None when the coordinator counts this member out. Raises what poll is to raise."""
        try:
            return done.result()
        except KafkaError as error:
            self._joining = None
            if error.code in EXPELLED:
                self.member.expelled(error)
                return None
            self.member.needs_join = True
            if error.code is ErrorCode.FENCED_INSTANCE_ID:
                self.member.fail(KafkaError(error.code, OVER[error.code]))
                return None
            raise
        except BaseException:
            self._joining = None
            self.member.needs_join = True
            raise

    async def _complete(self, wanted: Subscribed, done: asyncio.Task[tuple[Given, Placed]], until_ms: float) -> bool:
        """Until the listeners have been called `_joining` stays: the poll after one that is cancelled in here goes on
        with it. A listener that raises has been called; partitions go and come all the same."""
        outcome = self._outcome(done)
        if outcome is None:
            return True
        given, placed = outcome
        failures: list[Exception] = []
        held = self._holder.assignment()
        gone = [item for item in held if item not in given]
        if gone:
            if not await self._parted(until_ms):
                return False
            await self._call_all(wanted.on_revoked, gone, failures)
            if self._joining is not done:
                return True  # the listener has unsubscribed
            self._forget(gone)
            self.member.needs_join = True  # so that the others get them (KIP-429)
        new = [item for item in given if item not in held]
        if new:
            member = self.member
            logs.group.info(
                "group %s: member %s reads %s from now on (generation %s)",
                self.coordinator.group_id, member.member_id, _listed(new), member.generation,
            )  # fmt: skip
        for item in new:
            self.progress.take_up(item)
        self._holder.take_up(new, {item: placed[item] for item in new if item in placed})
        self._unannounced += new
        self._counts_seen = dict(self.member.group_topics)
        await self._call_all(wanted.on_assigned, list(self._unannounced), failures)
        self._unannounced = []
        if self._joining is done:
            self._joining = None
            self._look_at_counts()  # rule C32/counts-of-before-the-join
        if failures:
            raise failures[0]
        return True

    async def _call_all(
        self, listener: Listener | None, partitions: list[TopicPartition], failures: list[Exception]
    ) -> None:
        try:
            await self._tell(listener, partitions)
        except Exception as error:
            failures.append(error)

    async def _take_away(self, listener: Listener | None) -> None:
        """If the listener is cut short, the next poll takes them away; one that unsubscribes is not called again."""
        owned = self._holder.assignment()
        failures: list[Exception] = []
        if owned and not self._taking:
            self._taking = True
            try:
                await self._call_all(listener, owned, failures)
            finally:
                self._taking = False
        self._forget(owned)
        if failures:
            raise failures[0]

    def _forget(self, partitions: list[TopicPartition]) -> None:
        if partitions:
            logs.group.info("group %s: %s is given up", self.coordinator.group_id, _listed(partitions))
        self.progress.forget(partitions)
        self._holder.give_up(partitions)
        self._unannounced = [item for item in self._unannounced if item not in partitions]

    async def _tell(self, listener: Listener | None, partitions: list[TopicPartition]) -> None:
        if listener is not None:
            await self.invoke(listener, partitions)

    async def _drop_join(self) -> None:
        if self._joining is not None:
            joining, self._joining = self._joining, None
            joining.cancel()
            await asyncio.gather(joining, return_exceptions=True)

    # -- topics -----------------------------------------------------------------------------------------------------

    async def _refresh(self) -> bool:
        wanted = self.subscribed
        return wanted is not None and await wanted.refresh(self._session.metadata, self._config.request_timeout_ms)

    async def _watch_topics(self) -> None:
        """New topics of a pattern, and topics that did not exist yet; new partitions show in `_look_at_counts`."""
        age_ms = self._config.metadata_max_age_ms
        while True:
            metadata, wanted = self._session.metadata, self.subscribed
            missing = wanted is not None and not all(metadata.is_known(name) for name in wanted.topics)
            await asyncio.sleep((min(age_ms, _MISSING_TOPIC_MS) if missing else age_ms) / 1000)
            try:
                if self._joining is None and await self._refresh():
                    self.member.needs_join = True
                    self._holder.wake_poll()
            except StrandlineError as error:
                self.member.last_error = error
            if missing:
                metadata.request_update()

    def _look_at_metadata(self) -> None:
        """A fetch of metadata has ended."""
        self._say_what_is_missing()
        self._look_at_counts()

    @property
    def _missing(self) -> list[str]:
        """The topics subscribed to by name that do not exist, as the brokers say."""
        if self.subscribed is None:
            return []
        unknown = self._session.metadata.unknown_since_ms
        before_ms = self._session.clock.monotonic_ms() - _MISSING_TOPIC_MS  # not one that was made a moment ago
        return [name for name in self.subscribed.topics if unknown.get(name, before_ms + 1) <= before_ms]

    def _say_what_is_missing(self) -> None:
        """Log each missing topic once, until it has been there."""
        missing = self._missing
        for name in missing:
            if name not in self._said_missing:
                logs.group.warning(
                    "group %s: topic %r does not exist, and is looked for; %s",
                    self.coordinator.group_id, name, how_to_make(name),
                )  # fmt: skip
        self._said_missing = frozenset(missing)

    def _look_at_counts(self) -> None:
        """The leader shares out anew when topics that it shared out have grown, come or gone."""
        if self._joining is not None or not self._counts_seen or self.member.generation < 0:
            return
        metadata = self._session.metadata
        now = {name: self._count_of(metadata, name) for name in self._counts_seen}
        if now != self._counts_seen:
            self._counts_seen = now
            self.member.needs_join = True
            self._holder.wake_poll()

    async def _counts(self, topics: Iterable[str]) -> Mapping[str, int]:
        """Fresh counts; the leader keeps an eye on the topics of all members from then on."""
        names = list(topics)
        metadata = self._session.metadata
        metadata.want(names)
        await metadata.update(self._config.request_timeout_ms)
        return {name: self._count_of(metadata, name) for name in names if metadata.is_known(name)}

    @staticmethod
    def _count_of(metadata: Metadata, name: str) -> int:
        return metadata.topics[name].partition_count if metadata.is_known(name) else 0

    # -- the end ----------------------------------------------------------------------------------------------------

    async def unsubscribe(self, until_ms: float) -> None:
        """Commit what is done, give everything up, leave: by `until_ms` (monotonic), or not at all."""
        wanted = self.subscribed
        if wanted is None:
            return
        await self._drop_join()
        await self.commits.commit_parting(self._left_ms(until_ms) / 2)  # the listener is to have its time, too
        self._parting = None
        try:
            async with asyncio.timeout(self._left_ms(until_ms) / 1000) as scope:
                await self._take_away(wanted.on_revoked if self.member.generation >= 0 else wanted.on_lost)
        except TimeoutError:
            if not scope.expired():
                raise  # it is the listener's
            logs.group.warning("group %s: a listener was cut short: its time was over", self.coordinator.group_id)
        finally:
            self._forget(self._holder.assignment())
            self.subscribed = None
            self.member.needs_join = False
            await self.member.leave(timeout_ms=self._left_ms(until_ms))
            self.member.lost = None

    async def close(self, until_ms: float) -> None:
        """Leave and stop by `until_ms` (monotonic); commits that are under way are waited for. The tasks are their
        owner's to end."""
        try:
            if self.subscribed is None and self._config.enable_auto_commit:
                await self.commits.commit_done(min(self._left_ms(until_ms), PARTING_COMMIT_MS))
            await self.commits.finish(self._left_ms(until_ms))
            if self._started:
                await self.commits.renew_at_close(self._left_ms(until_ms))
            await self.unsubscribe(until_ms)
        finally:
            await self.member.stop()

    def _left_ms(self, until_ms: float) -> float:
        return max(until_ms - self._session.clock.monotonic_ms(), 0.0)


def _listed(partitions: Iterable[TopicPartition]) -> str:
    return ", ".join(str(item) for item in partitions)
