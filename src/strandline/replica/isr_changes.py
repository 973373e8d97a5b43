"""Proposals of ISR changes on their way to the controller: all that are due at once, one request at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import StrandlineError
from strandline.proto.isr import AlterPartitionItem, AlterPartitionOutcome
from strandline.proto.ports import RpcError
from strandline.proto.tasks import Report, spawn
from strandline.replica.core.isr import PendingIsr
from strandline.replica.core.leader import LeaderCore
from strandline.replica.partition import Partition

log = structlog.get_logger("strandline.replica")

SendAlterPartition = Callable[[list[AlterPartitionItem]], Awaitable[list[AlterPartitionOutcome]]]

RETRY_MS = 50.0
RETRY_MS_MAX = 1000.0


class IsrChanges:
    """Sends what leaders have pending and gives the answers back to them.

    `answered(partition, core, pending, outcome)` is called for each answer. A request that failed as a whole was
    perhaps carried out: its items are sent again (rule B2), after a pause.
    """

    def __init__(
        self,
        send: SendAlterPartition,
        answered: Callable[[Partition, LeaderCore, PendingIsr, AlterPartitionOutcome], None],
        failed: Report,
    ) -> None:
        """`failed` is told what nobody foresaw, after which nothing would be proposed any more."""
        self._send = send
        self._answered = answered
        self._failed = failed
        self._due: dict[Partition, None] = {}
        self._task: asyncio.Task[None] | None = None
        self._pause_ms = 0.0

    def add(self, partition: Partition) -> None:
        """The partition's leader has a pending change that is not sent."""
        self._due[partition] = None
        if self._task is None:
            self._task = spawn(self._run(), self._failed)

    def stop(self) -> asyncio.Task[None] | None:
        """Send nothing more; returns the task that ends with it, if any."""
        task = self._task
        if task is not None:
            task.cancel()
        return task

    async def _run(self) -> None:
        try:
            while self._due:
                due, self._due = self._due, {}
                await self._send_all(list(due))
                if self._pause_ms and self._due:
                    await asyncio.sleep(self._pause_ms / 1000)
        finally:
            self._task = None

    async def _send_all(self, partitions: list[Partition]) -> None:
        batch: list[tuple[Partition, LeaderCore, PendingIsr]] = []
        for partition in partitions:
            core = partition.leader
            if core is not None and core.pending is not None and not core.pending.sent:
                core.pending.sent = True
                batch.append((partition, core, core.pending))
        if not batch:
            return
        try:
            outcomes = await self._send([pending.item for _, _, pending in batch])
            if len(outcomes) != len(batch):
                raise StrandlineError(f"the controller judged {len(outcomes)} of {len(batch)} proposals")
        except (StrandlineError, RpcError) as error:
            log.warning("ISR changes could not be proposed", partitions=len(batch), error=str(error))
            self._back_off()
            for partition, core, pending in batch:
                if partition.leader is core and core.pending is pending:
                    pending.sent = False
                    self._due[partition] = None
            return
        self._pause_ms = 0.0
        for (partition, core, pending), outcome in zip(batch, outcomes, strict=True):
            if outcome.error is not ErrorCode.NONE:
                log.info(
                    "an ISR change was refused",
                    partition=str(partition.topic_partition),
                    proposed=pending.isr,
                    error=outcome.error.name,
                    message=outcome.message,
                )
            if partition.leader is core:
                self._answered(partition, core, pending, outcome)
                if core.pending is pending and not pending.sent:
                    self._back_off()
                    self._due[partition] = None

    def _back_off(self) -> None:
        self._pause_ms = min(max(self._pause_ms * 2, RETRY_MS), RETRY_MS_MAX)
