"""Proposals of ISR changes on their way to the controller: all that are due at once, one request at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

import structlog

from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import StrandlineError
from strandline.proto.ids import TopicPartition
from strandline.proto.isr import AlterPartitionItem, AlterPartitionOutcome
from strandline.proto.ports import RpcError
from strandline.proto.tasks import Report, spawn
from strandline.replica.core import IsrProposal, ProposeIsr

log = structlog.get_logger("strandline.replica")

SendAlterPartition = Callable[[list[AlterPartitionItem]], Awaitable[list[AlterPartitionOutcome]]]

RETRY_MS = 50.0
RETRY_MS_MAX = 1000.0


class Proposer(Protocol):
    """A partition whose leader proposes ISR changes."""

    @property
    def topic_partition(self) -> TopicPartition: ...

    def is_pending(self, proposal: IsrProposal) -> bool:
        """True if the leadership that made the proposal lasts, and still waits for the controller's answer to it."""

    def isr_answered(self, proposal: IsrProposal, outcome: AlterPartitionOutcome) -> None:
        """Take the controller's answer to a proposal."""


class IsrChanges:
    """Sends the leaders' proposals to the controller, and passes the answers back.

    A request that failed as a whole may have been carried out, so its items are sent again (rule B2), after a pause.
    """

    def __init__(self, send: SendAlterPartition, failed: Report) -> None:
        """`failed` takes unexpected errors, after which no proposal would be sent any more."""
        self._send = send
        self._failed = failed
        self._due: dict[Proposer, IsrProposal] = {}
        self._task: asyncio.Task[None] | None = None
        self._pause_ms = 0.0

    def propose(self, proposer: Proposer, effect: ProposeIsr) -> None:
        """Queue a leader's proposal. It replaces an older one of the same leader that was not sent yet."""
        self._due[proposer] = effect.proposal
        if effect.again:
            self._back_off()
        if self._task is None:
            self._task = spawn(self._run(), self._failed)

    def stop(self) -> asyncio.Task[None] | None:
        """Stop sending; return the task that ends with it, if any."""
        task = self._task
        if task is not None:
            task.cancel()
        return task

    async def _run(self) -> None:
        try:
            while self._due:
                due, self._due = self._due, {}
                await self._send_all([one for one in due.items() if one[0].is_pending(one[1])])
                if self._pause_ms and self._due:
                    await asyncio.sleep(self._pause_ms / 1000)
        finally:
            self._task = None

    async def _send_all(self, batch: list[tuple[Proposer, IsrProposal]]) -> None:
        if not batch:
            return
        try:
            outcomes = await self._send([proposal.item for _, proposal in batch])
            if len(outcomes) != len(batch):
                raise StrandlineError(f"the controller judged {len(outcomes)} of {len(batch)} proposals")
        except (StrandlineError, RpcError) as error:
            log.warning("ISR changes could not be proposed", partitions=len(batch), error=str(error))
            self._back_off()
            for proposer, proposal in batch:
                if proposer.is_pending(proposal):
                    self._due[proposer] = proposal  # rule B2/a-lost-request-stays-lost
            return
        self._pause_ms = 0.0
        for (proposer, proposal), outcome in zip(batch, outcomes, strict=True):
            if outcome.error is not ErrorCode.NONE:
                log.info(
                    "an ISR change was refused",
                    partition=str(proposer.topic_partition),
                    proposed=proposal.isr,
                    error=outcome.error.name,
                    message=outcome.message,
                )
            if proposer.is_pending(proposal):
                proposer.isr_answered(proposal, outcome)

    def _back_off(self) -> None:
        self._pause_ms = min(max(self._pause_ms * 2, RETRY_MS), RETRY_MS_MAX)
