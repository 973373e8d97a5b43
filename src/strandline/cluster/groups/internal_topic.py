"""Internal topic of a coordinator or of the audit log, created when it is first needed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import structlog

from strandline.controller import operations
from strandline.controller.api import CreatableTopic, CreateTopicsRequest
from strandline.controller.channel import ControllerChannel
from strandline.controller.metadata.image import MetadataImage
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ports import Clock
from strandline.proto.tasks import shared

log = structlog.get_logger("strandline.coordinator")

SETTLE_MS = 3_000.0
"""Milliseconds after its own start for which a broker waits for others before it creates the topic with fewer replicas
than configured: most likely the others are starting, too."""


@dataclass(frozen=True, slots=True)
class InternalTopicConfig:
    """Settings with which an internal topic is created.

    Attributes:
        partitions: number of partitions; 0: as many as brokers are registered.
        replication_factor: replicas of each partition; fewer if fewer brokers are registered.
        configs: settings of the topic itself, by name.
    """

    name: str
    partitions: int
    replication_factor: int
    configs: Mapping[str, str]


class InternalTopic:
    """Creates the topic once, even if several callers ask for it at the same time."""

    def __init__(
        self,
        config: InternalTopicConfig,
        *,
        image: Callable[[], MetadataImage],
        controller: ControllerChannel,
        clock: Clock,
        timeout_ms: float,
        settle_ms: float = SETTLE_MS,
    ) -> None:
        self._config = config
        self._image = image
        self._controller = controller
        self._clock = clock
        self._timeout_ms = timeout_ms
        self._settled_ms = clock.monotonic_ms() + settle_ms
        self._creating: asyncio.Future[None] | None = None

    async def ensure(self) -> None:
        """Return once the topic exists according to the controller; this broker's metadata may contain it a moment
        later.

        Raises:
            KafkaError: COORDINATOR_NOT_AVAILABLE with the reason.
        """
        if self._config.name in self._image().topics:
            return
        if self._creating is None:
            self._creating = asyncio.ensure_future(self._create())
            self._creating.add_done_callback(lambda done: done.cancelled() or done.exception())
        await shared(self._creating)

    async def _create(self) -> None:
        config = self._config
        try:
            registered = sum(not broker.in_controlled_shutdown for broker in self._image().brokers.values())
            if registered < config.replication_factor and self._clock.monotonic_ms() < self._settled_ms:
                raise KafkaError(
                    ErrorCode.COORDINATOR_NOT_AVAILABLE,
                    f"{config.name} shall have {config.replication_factor} copies; brokers here yet: {registered}",
                )
            copies = max(1, min(config.replication_factor, registered))
            topic = CreatableTopic(
                name=config.name,
                num_partitions=config.partitions or max(1, registered),
                replication_factor=copies,
                configs=dict(config.configs),
            )
            reply = await self._controller.ask(
                operations.CREATE_TOPICS, CreateTopicsRequest(topics=(topic,)), self._timeout_ms
            )
            outcome = reply.topics[0]
            if outcome.error not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                raise KafkaError(
                    ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{config.name} cannot be created: {outcome.message}"
                )
            if outcome.error is ErrorCode.NONE and copies < config.replication_factor:
                log.warning(
                    "an internal topic has fewer copies than it should",
                    topic=config.name,
                    copies=copies,
                    wanted=config.replication_factor,
                )
        except KafkaError as error:
            if error.code is ErrorCode.COORDINATOR_NOT_AVAILABLE:
                raise
            message = f"{config.name} cannot be created: {error.message or error.code.name}"
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, message) from error
        finally:
            self._creating = None
