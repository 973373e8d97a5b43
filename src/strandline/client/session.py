"""Parts that every client has: clock, chance, connections and metadata."""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Sequence
from functools import cache

from strandline.client import logs
from strandline.client.backoff import backoff_ms
from strandline.client.config import CommonConfig, parse_bootstrap
from strandline.client.errors import ClientError, ClosedError
from strandline.client.loop_thread import OF_THE_PARENT, of_parents
from strandline.client.metadata import Metadata
from strandline.client.network import Network
from strandline.log import compiled
from strandline.proto.ports import Clock, Rng
from strandline.proto.system import SystemClock, system_rng


@cache
def _tell_if_slow() -> None:
    """Warn once in a process where compiled parts are missing."""
    if lacking := compiled.missing(compiled.OF_CLIENTS):
        why = "; ".join(f"{name}: {reason}" for name, reason in lacking.items())
        logs.log.warning(
            "this installation is slow: %s (%s). To mend it, %s", compiled.CONSEQUENCE, why, compiled.REMEDY
        )


class Session:
    """Clock, generator, connections and metadata of one client. Used on one event loop."""

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        config: CommonConfig,
        *,
        clock: Clock | None = None,
        rng: Rng | None = None,
        allow_auto_create: bool = False,
    ) -> None:
        _tell_if_slow()
        self.clock = clock or SystemClock()
        self.rng = rng or system_rng()
        self.network = Network(parse_bootstrap(bootstrap), config, self.clock, self.rng)
        self.metadata = Metadata(self.network, config, self.clock, self.rng, allow_auto_create=allow_auto_create)
        self.bootstrap = bootstrap
        self.config = config
        self.orphaned = False
        """This process is a forked child: loop and connections are the parent's."""
        self._loop: asyncio.AbstractEventLoop | None = None
        _living.add(self)

    def check(self) -> None:
        """Whether this client may be used here; the loop that uses it first is its own from then on.

        Raises:
            ClosedError: in a forked child, whose every byte would go into the parent's connections.
            ClientError: on another event loop, or outside of one: what is queued there nobody would send.
        """
        if self.orphaned:
            raise ClosedError(OF_THE_PARENT)
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            loop = None
        if self._loop is None:
            self._loop = loop
        elif loop is not self._loop:
            ended = ", which has ended" if self._loop.is_closed() else ""
            raise ClientError(
                f"this client belongs to the event loop that used it first{ended}: nothing was done. Make, use and "
                "close a client inside one asyncio.run; the blocking clients (strandline.client) need no loop"
            )

    def backoff_ms(self, failures: int) -> float:
        """Wait (ms) after that many failures in a row (`retry.backoff.ms`, `retry.backoff.max.ms`)."""
        return backoff_ms(failures, self.config.retry_backoff_ms, self.config.retry_backoff_max_ms, self.rng)

    async def close(self) -> None:
        """Close the connections. Idempotent; nothing in a forked child. Raises ClientError: on another event loop."""
        if self.orphaned:
            return
        self.check()
        self.drop()  # rule B43/a-cancelled-close-leaves-connections
        await self.metadata.close()
        await self.network.close()

    def drop(self) -> None:
        """Close the connections without a wait. Idempotent; nothing in a forked child."""
        if not self.orphaned:
            self.metadata.stop()
            self.network.drop()


_living: weakref.WeakSet[Session] = weakref.WeakSet()


def _after_fork() -> None:
    for session in list(_living):
        session.orphaned = True
        of_parents.append(session)
    _living.clear()


os.register_at_fork(after_in_child=_after_fork)
