"""State that the services of a run share: their clients' settings, what was promised to them, and how their tasks
end."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Mapping
from typing import Any

from strandline.chaos.checkers.handled import HandledRecords
from strandline.chaos.services.options import ServiceOptions, is_poison
from strandline.chaos.workload import Ports
from strandline.client.aio import Admin, Consumer, Producer
from strandline.proto.errors import KafkaError, StrandlineError


class Shared:
    """State over all incarnations of the services' process.

    Attributes:
        ledger: what was promised, and handled.
        errors: what went wrong in clients' eyes, counted: for the figures of a run.
        cancelled: so many tasks were.
    """

    def __init__(self, bootstrap: str, options: ServiceOptions, login: Mapping[str, Any]) -> None:
        """`login`: settings of all clients: as whom they log in."""
        self.bootstrap = bootstrap
        self.login = login
        self.options = options
        self.ledger = HandledRecords(is_poison if "run" in options.members else lambda _: False)
        self.errors: Counter[str] = Counter()
        self.cancelled = 0
        self._running: dict[str, asyncio.Task[Any]] = {}

    def begin(self) -> None:
        """Begin in another process: the tasks of the one before are no more."""
        self._running = {}

    # --- clients ---

    def admin(self, ports: Ports) -> Admin:
        """Admin client for topics."""
        settings: dict[str, Any] = {"request_timeout_ms": 5_000, "default_api_timeout_ms": 10_000}
        return Admin(self.bootstrap, clock=ports.clock, rng=ports.rng, **settings, **self.login)

    def producer(self, ports: Ports) -> Producer:
        """Idempotent, acks=all."""
        settings: dict[str, Any] = {"request_timeout_ms": 2_000, "delivery_timeout_ms": 20_000, "max_block_ms": 10_000}
        return Producer(self.bootstrap, clock=ports.clock, rng=ports.rng, **settings, **self.login)

    def consumer(self, ports: Ports, **settings: Any) -> Consumer:
        """Begins at the beginning."""
        given = self.options.consumer | {"auto_offset_reset": "earliest"} | settings
        return Consumer(self.bootstrap, clock=ports.clock, rng=ports.rng, **given, **self.login)

    # --- tasks ---

    async def cancellable(self, name: str, work: Awaitable[Any]) -> BaseException | None:
        """Run it as a task that may be cancelled at any await. Returns how it ended; None: of itself."""
        task = self._running[name] = asyncio.ensure_future(work)
        try:
            await asyncio.wait([task])
        finally:
            self._running.pop(name, None)
        return asyncio.CancelledError() if task.cancelled() else task.exception()

    def cancel_one(self, rng: random.Random) -> None:
        """Wherever it waits."""
        names = sorted(self._running)
        if names:
            self._running[rng.choice(names)].cancel()
            self.cancelled += 1

    def failed(self, error: BaseException) -> None:
        """Count an error of a client."""
        self.errors[error.code.name if isinstance(error, KafkaError) else type(error).__name__] += 1

    def end_task(self, ended: BaseException | None) -> None:
        """Note how a task ended. Errors of clients are counted; others, violations or internal errors, are raised."""
        if isinstance(ended, StrandlineError):
            self.failed(ended)
        elif ended is not None and not isinstance(ended, asyncio.CancelledError):
            raise ended
