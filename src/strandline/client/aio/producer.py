"""The producer for coroutines. Runs on the loop that first uses it, whatever loop that is; makes no thread."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Sequence
from typing import Self, Unpack

from strandline.client.config import ProducerConfig
from strandline.client.errors import ClosedError
from strandline.client.futures import LoopFutures
from strandline.client.metadata import TopicView
from strandline.client.producer_core import Headers, Payload, ProducerCore
from strandline.client.session import Session
from strandline.client.settings import ProducerSettings
from strandline.client.tasks import log
from strandline.client.types import Ack
from strandline.proto.ports import Clock, Rng


class Producer:
    """The asynchronous twin of `strandline.client.Producer`; `send` is awaited until the record is queued.

    Args:
        bootstrap: ``"host:port,..."`` or a sequence of them.
        clock, rng: the world; the machine's own when left out.
        settings: see docs/client-settings.md.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str] = "127.0.0.1:9092",
        *,
        clock: Clock | None = None,
        rng: Rng | None = None,
        **settings: Unpack[ProducerSettings],
    ) -> None:
        self._config = ProducerConfig.of(settings)
        self.session = Session(bootstrap, self._config, clock=clock, rng=rng, allow_auto_create=True)
        self._core: ProducerCore | None = None
        self._closed = False

    async def send(
        self,
        topic: str,
        value: Payload | None = None,
        *,
        key: Payload | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> asyncio.Future[Ack]:
        """Queue one record; the returned future gives its `Ack`. Waits and raises as the blocking producer's `send`."""
        core = self._started()
        lanes = core.lanes.get(topic)
        if lanes is not None:
            short: asyncio.Future[Ack] | None = lanes.append(value, key, headers, partition, timestamp_ms)
            if short is not None:
                return short
        view = await self._view(core, topic, partition)
        future: asyncio.Future[Ack] | None = core.try_send(
            view, value, key, headers, partition=partition, timestamp_ms=timestamp_ms
        )
        if future is None:
            deadline_ms = self.session.clock.monotonic_ms() + self._config.max_block_ms
            while future is None:
                await core.wait_for_room(deadline_ms)
                future = core.try_send(view, value, key, headers, partition=partition, timestamp_ms=timestamp_ms)
        return future

    async def send_and_wait(
        self,
        topic: str,
        value: Payload | None = None,
        *,
        key: Payload | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Ack:
        """Send one record and return its acknowledgement."""
        return await (
            await self.send(topic, value, key=key, headers=headers, partition=partition, timestamp_ms=timestamp_ms)
        )

    async def flush(self, timeout_s: float | None = None) -> None:
        """Return once everything sent before is acknowledged or has failed. Raises ClientTimeout."""
        if self._core is not None:
            self.session.check_process()
            await self._core.flush(timeout_s)

    async def partitions_for(self, topic: str) -> int:
        """How many partitions a topic has. Raises as `send` does."""
        return (await self._view(self._started(), topic, None)).partition_count

    async def close(self, timeout_s: float | None = None) -> None:
        """Flush, at most `timeout_s`, then close; the rest fails with ClosedError. Idempotent. Raises ClientTimeout."""
        already, self._closed = self._closed, True
        core = self._core
        if already or core is None or self.session.orphaned:
            return
        try:
            await self.flush(timeout_s)
        finally:
            await core.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __del__(self, _warn: Callable[..., None] = warnings.warn) -> None:
        """Say what is lost: nobody can wait for it here."""
        core = getattr(self, "_core", None)
        if core is None or self._closed or self.session.orphaned:
            return
        _warn(f"{self!r} was not closed: await close(), or use `async with`", ResourceWarning, source=self)
        count = sum(batch.count for _, batch in core.accumulator.all_batches())
        if count:
            text = f"{count} records of an aio.Producer that was not closed are lost"
            log.error(text)
            _warn(text, RuntimeWarning, source=self)

    # -- inside -----------------------------------------------------------------------------------------------------

    def _started(self) -> ProducerCore:
        self.session.check_process()
        if self._closed:
            raise ClosedError("the producer is closed")
        if self._core is None:
            self._core = ProducerCore(self._config, self.session, LoopFutures(), threaded=False)
        return self._core

    async def _view(self, core: ProducerCore, topic: str, partition: int | None) -> TopicView:
        view = core.metadata.topics.get(topic)
        if view is not None and view.partitions:
            if partition is None or partition in view.partitions:
                return view
            await core.metadata.update(self._config.max_block_ms)
        return await core.metadata.wait_for_topic(topic, self._config.max_block_ms)
