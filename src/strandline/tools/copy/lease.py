"""The copy's place in its group: who has it, and nobody else, commits rounds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

from strandline.client.config import ConsumerConfig
from strandline.client.errors import ClientError, ClientTimeout
from strandline.client.groups.classic import ClassicMembership
from strandline.client.groups.coordinator import GroupCoordinator
from strandline.client.groups.membership import EXPELLED
from strandline.client.limits import Limit
from strandline.client.session import Session
from strandline.client.tasks import Tasks
from strandline.client.types import OffsetAndMetadata
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError, StrandlineError
from strandline.proto.ids import TopicPartition
from strandline.proto.kafka.apis import Api
from strandline.proto.ports import Clock, Rng
from strandline.tools.copy.errors import CopyTakenOver

INSTANCE_ID = "copy"
"""The one static member: a second one takes the first one's place, and the first one is told so (KIP-345)."""

FAREWELL_MS = 3_000
SESSION_TIMEOUT_MS = 30_000
"""Milliseconds that a copy that was killed is still shown as a member. Nobody waits for it: the next copy takes its
place."""


class LeaseLost(ClientError):
    """The coordinator has lost sight of this member (a pause, say): join again and see what the group notes."""


class Lease:
    """Membership of one copy. Runs on one event loop.

    Invariant: what `commit` writes was decided by whoever holds the place at that time; the coordinator sees to it.
    """

    def __init__(
        self, bootstrap: str | Sequence[str], group: str, topics: tuple[str, ...], settings: Mapping[str, object],
        *, clock: Clock, rng: Rng,
    ) -> None:  # fmt: skip
        config = ConsumerConfig(
            {
                "client_id": "strandline-copy",
                **settings,
                "group_id": group,
                "group_instance_id": INSTANCE_ID,
                "session_timeout_ms": SESSION_TIMEOUT_MS,
                "enable_auto_commit": False,
            }
        )
        self.group = group
        self._topics = topics
        self._timeout_ms = config.default_api_timeout_ms
        self._session = Session(bootstrap, config, clock=clock, rng=rng)
        self._session.metadata.want(topics)  # one that is made anew is to be noticed
        self._coordinator = GroupCoordinator(self._session, group, config.request_timeout_ms)
        self._broken: ClientError | None = None
        self._tasks = Tasks(self._broke)
        self._member = ClassicMembership(
            config, self._session, self._coordinator, self._tasks, counts=self._counts, on_change=lambda: None
        )
        # There is no poll: a copy lives as long as its event loop, and so its heartbeats, do.
        self._member.polling = True

    async def take(self) -> None:
        """Take the place, from whoever has it.

        Raises:
            CopyTakenOver: another copy takes it at this moment.
            KafkaError: INCONSISTENT_GROUP_PROTOCOL, the group is somebody else's; GROUP_AUTHORIZATION_FAILED.
            ClientTimeout: no coordinator within `default.api.timeout.ms`.
        """

        while True:
            try:
                async with asyncio.timeout(self._timeout_ms / 1000):
                    await self._member.join(self._topics, ())
                return
            except KafkaError as error:
                if error.code is ErrorCode.FENCED_INSTANCE_ID:
                    raise CopyTakenOver(self.group) from error
                if error.code not in EXPELLED:
                    raise
                self._member.expelled(error)
            except TimeoutError:
                raise ClientTimeout(
                    f"group {self.group}: no place in it within default.api.timeout.ms={self._timeout_ms}",
                    self._member.last_error,
                ) from None

    async def notes(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Notes of the group: all that others have committed, for nobody but this member commits since `take`."""

        async def ask() -> dict[TopicPartition, OffsetAndMetadata]:
            return await self._coordinator.committed(None, stable=False)

        return await self._coordinator.retrying(ask, self._timeout_ms)

    async def commit(self, notes: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Note a round, in one commit.

        Raises:
            CopyTakenOver: another copy has the place.
            LeaseLost: the coordinator does not count this member in any more.
            ClientTimeout: see `take`.
        """

        self.check()
        who = self._member.identity  # and no other: one without a generation may commit whenever the group is empty
        await self._as_member(lambda: self._coordinator.commit(who, notes))

    async def confirm(self) -> None:
        """Ask whether the place is still this copy's. Raises as `commit`."""
        self.check()
        who = self._member.identity
        values = {
            "group_id": self.group,
            "generation_id": who.generation,
            "member_id": who.member_id,
            "group_instance_id": who.instance_id,
        }

        async def beat() -> None:
            answer = await self._coordinator.call(Api.HEARTBEAT, values)
            self._coordinator.check(Api.HEARTBEAT, answer.error_code)

        await self._as_member(beat)

    async def _as_member(self, attempt: Callable[[], Awaitable[None]]) -> None:
        try:
            await self._coordinator.retrying(attempt, self._timeout_ms)
        except KafkaError as error:
            if error.code is ErrorCode.FENCED_INSTANCE_ID:
                raise CopyTakenOver(self.group) from error
            if error.code in EXPELLED or error.code is ErrorCode.REBALANCE_IN_PROGRESS:
                self._member.expelled(error)
                raise LeaseLost(f"group {self.group}: {error}") from error
            raise

    def _broke(self, error: ClientError) -> None:
        self._broken = error

    def check(self) -> None:
        """Raises CopyTakenOver or LeaseLost where a heartbeat has found out, ClientError where they have ended."""
        if self._broken is not None:
            raise self._broken
        if self._member.fatal is not None:
            raise CopyTakenOver(self.group) from self._member.fatal
        if self._member.needs_join or self._member.generation < 0:
            raise LeaseLost(f"group {self.group}: {self._member.last_error}")

    async def close(self) -> None:
        """Leave the group at once, if this still is its member. Never raises for the network's sake."""
        who = self._member.identity
        await self._member.stop()
        try:
            if who.generation >= 0:
                identity = {
                    "member_id": who.member_id,
                    "group_instance_id": INSTANCE_ID,
                    "reason": "the copy has ended",
                }
                values = {"group_id": self.group, "member_id": who.member_id, "members": [identity]}
                leaving = self._coordinator.call(Api.LEAVE_GROUP, values)
                await Limit(FAREWELL_MS, f"group {self.group}: it was not left within {FAREWELL_MS} ms").keep(leaving)
        except StrandlineError as error:  # the coordinator finds out when the session is over
            self._member.last_error = error
        finally:
            await self._session.close()

    async def _counts(self, topics: Iterable[str]) -> dict[str, int]:
        """Nobody consumes: an assignment would only say what the notes say already."""
        return dict.fromkeys(topics, 0)
