"""The leader's part of auto-join (KIP-1186, rule A38): controllers that ask for a vote get one, one after the other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any
from uuid import UUID

import structlog

from strandline.controller.raft.config import CHECK_QUORUM_FACTOR
from strandline.controller.raft.core import RaftCore
from strandline.controller.raft.leader import Leader, ReplicaProgress
from strandline.controller.raft.messages import ReplicaKey
from strandline.proto.errors import KafkaError
from strandline.proto.ids import NodeId

log = structlog.get_logger("strandline.quorum")

_AGAIN_MS = 2_000.0
"""Milliseconds after an attempt until the next one."""

Change = Callable[[NodeId, UUID], Awaitable[object]]


class Joining:
    """Looks for observers that ask for a vote, whenever something has happened.

    Invariants:
    - one attempt is under way at most.
    """

    def __init__(self, core: RaftCore, add: Change, remove: Change, now_ms: Callable[[], float]) -> None:
        """`add` and `remove` change the voters, and wait for the commit."""
        self._core = core
        self._add = add
        self._remove = remove
        self._now_ms = now_ms
        self._busy = False
        self._next_ms = -1.0

    def look(self, spawn: Callable[[Coroutine[Any, Any, None]], None]) -> None:
        """Begin an attempt if somebody asks and has caught up."""
        core = self._core
        leading = core.leading
        if leading is None or not core.voters.dynamic or self._busy:
            return
        now_ms = self._now_ms()
        if now_ms < self._next_ms:
            return
        for seen in leading.observers.values():
            if seen.wants_vote and self._may_join(leading, seen, now_ms):
                self._busy = True
                spawn(self._admit(seen.key))
                return

    def _may_join(self, leading: Leader, seen: ReplicaProgress, now_ms: float) -> bool:
        """Whether the replica has all that the leader has, and no other directory of its node is alive as a voter."""
        timeout_ms = self._core.node.config.fetch_timeout_ms
        if now_ms - seen.last_caught_up_ms >= timeout_ms or seen.key.node_id == self._core.key.node_id:
            return False
        former = leading.voters.get(seen.key.node_id)
        # rule A38/a-living-voter-is-replaced
        return (
            former is None or now_ms - max(former.last_fetch_ms, leading.since_ms) >= timeout_ms * CHECK_QUORUM_FACTOR
        )

    async def _admit(self, key: ReplicaKey) -> None:
        try:
            former = self._core.voters.recorded(key.node_id)
            if former is not None and former != key and former.directory_id is not None:
                await self._remove(former.node_id, former.directory_id)
            if key.directory_id is not None:
                await self._add(key.node_id, key.directory_id)
                log.info("a controller that asked for a vote has one", node=key.node_id)
        except KafkaError as error:
            log.info("a controller that asks for a vote has none yet", node=key.node_id, why=error.message)
        finally:
            self._busy = False
            self._next_ms = self._now_ms() + _AGAIN_MS
