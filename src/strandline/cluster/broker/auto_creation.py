"""Topics that are created on their first use (`auto.create.topics.enable`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import structlog

from strandline.cluster.broker.exchange import Charge
from strandline.controller.api import CreatableTopic, CreateTopicsRequest
from strandline.controller.channel import ControllerChannel
from strandline.controller.metadata.config_resolver import ConfigResolver
from strandline.controller.metadata.image import MetadataImage
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.tasks import spawn

log = structlog.get_logger("strandline.broker")


class AutoCreation:
    """Asks the controller for topics in the background, for each name once at a time."""

    def __init__(
        self,
        controller: ControllerChannel,
        image: Callable[[], MetadataImage],
        configs: ConfigResolver,
        *,
        timeout_ms: float,
    ) -> None:
        self._controller = controller
        self._image = image
        self._configs = configs
        self._timeout_ms = timeout_ms
        self._being_created: dict[str, None] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}

    def close(self) -> None:
        """Wait for no answer any more."""
        for task in list(self._tasks):
            task.cancel()

    @property
    def is_on(self) -> bool:
        """Whether the cluster creates topics on their first use."""
        return self._configs.broker_value(self._image(), "auto.create.topics.enable") == "true"

    def create(self, names: Sequence[str], charge: Charge) -> None:
        """Begin to create those of `names` that are not being created yet, and that the charge admits."""
        fresh = [name for name in dict.fromkeys(names) if name not in self._being_created]
        partitions = int(self._configs.broker_value(self._image(), "num.partitions")) if fresh else 0
        fresh = [name for name in fresh if charge.admits(partitions)]
        if fresh:
            self._being_created.update(dict.fromkeys(fresh))
            task = spawn(self._create(fresh, charge, partitions), _log_failure)
            self._tasks[task] = None
            task.add_done_callback(self._tasks.pop)

    def is_creating(self, name: str | None) -> bool:
        """The controller has not answered yet."""
        return name in self._being_created

    async def _create(self, names: list[str], charge: Charge, partitions: int) -> None:
        """Each name was charged for so many partitions."""
        try:
            reply = await self._controller.create_topics(
                CreateTopicsRequest(topics=tuple(CreatableTopic(name=name) for name in names)),
                self._timeout_ms,
            )
            for outcome in reply.topics:
                charge.correct(max(outcome.num_partitions, 0) - partitions)
                if outcome.error not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                    log.warning(
                        "topic was not created on first use",
                        topic=outcome.name,
                        error=outcome.error.name,
                        message=outcome.message,
                    )
        except KafkaError as error:
            if error.code is not ErrorCode.REQUEST_TIMED_OUT:  # then they may still be created
                charge.correct(-partitions * len(names))
            log.warning("topics were not created on first use", topics=names, error=str(error))
        finally:
            for name in names:
                del self._being_created[name]


def _log_failure(error: BaseException) -> None:
    log.error("internal error: topics were not created on first use", exc_info=error)
