"""The broker's side of the controller's operations: find the active one, ask, retry until the deadline."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from strandline.controller import methods
from strandline.controller.metadata.publisher import ImagePublisher
from strandline.controller.operations import Operation
from strandline.controller.quorum.api import LeaderAndEpoch, QuorumView
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import Endpoint
from strandline.proto.ports import Clock, Rng, Rpc, RpcTimeout, RpcUnavailable

Request = TypeVar("Request")
Reply = TypeVar("Reply")

DEFAULT_TIMEOUT_MS = 30_000.0
"""Milliseconds for which a call looks for the active controller and its answer (Kafka's request.timeout.ms)."""

ATTEMPT_TIMEOUT_MS = 2_000.0
"""The first attempt at one controller: silent longer than this, it may have lost its leadership without our seeing it.

Each further attempt at the same one is given twice the time: it may just be slow, and what it is asked to do anew every
two seconds would make it slower.
"""

BACKOFF_MS = (10.0, 100.0)
"""First and longest pause between attempts; a change of the quorum's leader ends a pause at once."""

HEARD_WITHIN_MS = 500.0
"""Maximum milliseconds that an answer to a client waits until this broker has applied the change itself, which usually
takes milliseconds."""


class ControllerChannel:
    """Asks for the operations of the controller, wherever the active one is.

    NOT_CONTROLLER, a broken connection and silence are retried until `timeout_ms` is over; every other answer is final.
    An attempt that broke may have been carried out: operations are built so that asking again is right (topics carry a
    proposed id; ISR proposals carry epochs, and the refusal of one copy ends no other: their leader withdraws it,
    schedule 50; a lost block of producer ids is wasted). Where the retry
    cannot be told from a second request (deleting, adding partitions), the answer is the one of Kafka's controller.
    """

    def __init__(self, quorum: QuorumView, publisher: ImagePublisher, rpc: Rpc, clock: Clock, rng: Rng) -> None:
        self._quorum = quorum
        self._publisher = publisher
        self._rpc = rpc
        self._clock = clock
        self._rng = rng
        self._leader_moved: asyncio.Event | None = None

    def handle_leader_change(self, leader_and_epoch: LeaderAndEpoch) -> None:
        """Wake the calls that wait for a controller; to be subscribed with the publisher."""
        if leader_and_epoch.leader_id is not None and self._leader_moved is not None:
            self._leader_moved.set()
            self._leader_moved = None

    def active_endpoint(self) -> Endpoint | None:
        """Endpoint of the active controller, as far as this node knows; else None."""
        leader = self._quorum.leader_and_epoch.leader_id
        return None if leader is None else self._quorum.endpoint_of(leader)

    async def wait_for_leader_change(self, pause_ms: float) -> None:
        """Wait until the quorum's leader changes, or for half to all of `pause_ms`: chance keeps nodes out of step."""
        if self._leader_moved is None:
            self._leader_moved = asyncio.Event()
        moved = self._leader_moved
        try:
            async with asyncio.timeout(pause_ms * self._rng.uniform(0.5, 1.0) / 1000.0):
                await moved.wait()
        except TimeoutError:
            pass

    async def ask(
        self, operation: Operation[Request, Reply], request: Request, timeout_ms: float = DEFAULT_TIMEOUT_MS
    ) -> Reply:
        """Ask the active controller; where the operation is to be `heard` wait for a moment until this node's image
        has what it answers.

        Raises:
            KafkaError: its answer, or REQUEST_TIMED_OUT when none came in time.
        """
        method = operation.method
        if operation.prepare is not None:
            request = operation.prepare(request, self._rng)
        data = method.request.encode(request)
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        pause_ms = BACKOFF_MS[0]
        patience_ms = ATTEMPT_TIMEOUT_MS
        silent: Endpoint | None = None
        last: Exception | None = None
        while True:
            left_ms = deadline_ms - self._clock.monotonic_ms()
            if left_ms <= 0:
                why = self._why_leaderless() if last is None else str(last)
                raise KafkaError(
                    ErrorCode.REQUEST_TIMED_OUT,
                    f"The active controller gave no answer to {method.name} within {timeout_ms:.0f} ms: {why}",
                )
            endpoint = self.active_endpoint()
            if endpoint is not None:
                patience_ms = patience_ms * 2 if endpoint == silent else ATTEMPT_TIMEOUT_MS
                silent = None
                attempt_ms = min(left_ms, patience_ms)
                try:
                    answer = await self._rpc.call(endpoint, method.path, data, timeout_ms=attempt_ms)
                    reply, offset = methods.read_answer(method, answer)
                    if operation.heard:
                        left_ms = deadline_ms - self._clock.monotonic_ms()
                        await self._publisher.reached(offset, max(0.0, min(left_ms, HEARD_WITHIN_MS)))
                    return reply
                except KafkaError as error:
                    if error.code is not ErrorCode.NOT_CONTROLLER:
                        raise
                    last = error
                except RpcTimeout as error:
                    last = error
                    silent = endpoint
                except RpcUnavailable as error:
                    last = error
            await self.wait_for_leader_change(min(pause_ms, max(left_ms, 1.0)))
            pause_ms = min(pause_ms * 2, BACKOFF_MS[1])

    def _why_leaderless(self) -> str:
        """Reason why no active controller is known, as a sentence: mostly, none could be reached."""
        unreached = sorted(self._quorum.unreached.items())
        reasons = [f"controller {node} at {words}" if node >= 0 else f"some at {words}" for node, words in unreached]
        if not reasons:
            return "no controller is known to lead"
        advice = (
            "Do they run, and does each one's INTERNAL listener take the address, and the family of addresses (IPv4 or "
            "IPv6), that its name in controller.quorum.voters, or controller.quorum.bootstrap.servers, has here?"
        )
        return f"no controller is known to lead, and these cannot be reached: {'; '.join(reasons)}. {advice}"
