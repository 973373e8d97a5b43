"""InitProducerId: ids of idempotent producers, from blocks that the controller gives out once and for ever."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from strandline.cluster.broker.service.authorizer import CLUSTER, Operation, allowed
from strandline.cluster.broker.service.base import NO_PRODUCER_IDS, NO_TRANSACTIONS, Base
from strandline.cluster.broker.service.context import RequestContext
from strandline.controller.api import AllocateProducerIdsRequest, ProducerIdBlock
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import ProducerId

PREFETCH_BELOW = 100
"""So many ids left of a block of 1,000: ask for the next one, before a producer has to wait for it."""

RETRY_MS = 500.0
"""Pause after a failed request for the first block."""


class InitProducerIdRequest(NamedTuple):
    """`producer_id` and `producer_epoch` are what the producer had before, or -1 (KIP-360)."""

    transactional_id: str | None
    producer_id: int = -1
    producer_epoch: int = -1


class ProducerIdentity(NamedTuple):
    producer_id: ProducerId
    producer_epoch: int


class ProducerIds(Base):
    """The producer-id operation of the service."""

    async def init_producer_id(self, context: RequestContext, request: InitProducerIdRequest) -> ProducerIdentity:
        """A fresh id with epoch 0; idempotent producers never get an old one again.

        Raises:
            KafkaError: TRANSACTIONAL_ID_AUTHORIZATION_FAILED with a transactional id (the error on which every client
                gives up at once), CLUSTER_AUTHORIZATION_FAILED, or COORDINATOR_NOT_AVAILABLE while no controller
                answers: clients try again.
        """
        if request.transactional_id is not None:
            raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, NO_TRANSACTIONS)
        if not allowed(self.authorizer, context, Operation.IDEMPOTENT_WRITE, CLUSTER):
            raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        while self._producer_ids_left.count == 0:
            if self._producer_ids_next.count > 0:
                self._producer_ids_left, self._producer_ids_next = self._producer_ids_next, NO_PRODUCER_IDS
            else:
                await self._lease_block()
        producer_id = self._producer_ids_left.first_producer_id
        self._producer_ids_left = ProducerIdBlock(ProducerId(producer_id + 1), self._producer_ids_left.count - 1)
        if self._producer_ids_left.count < PREFETCH_BELOW and self._producer_ids_next.count == 0:
            self._start_lease()
        return ProducerIdentity(producer_id, 0)

    async def hold_producer_ids(self) -> None:
        """Return once a block is here. A broker asks for it when it starts: new producers then need no controller,
        and data flow on while a majority of controllers is away (rows S34, S45)."""
        while self._producer_ids_left.count + self._producer_ids_next.count == 0:
            try:
                await self._lease_block()
            except KafkaError:
                await asyncio.sleep(RETRY_MS / 1000)

    async def _lease_block(self) -> None:
        """One request to the controller, however many producers wait for it."""
        await asyncio.shield(self._start_lease())

    def _start_lease(self) -> asyncio.Future[None]:
        if self._lease is None:
            self._lease = asyncio.ensure_future(self._ask_for_block())
            # Whoever waits hears of a failure; a block asked for ahead of need is asked for again when it is needed.
            self._lease.add_done_callback(lambda lease: lease.cancelled() or lease.exception())
        return self._lease

    async def _ask_for_block(self) -> None:
        try:
            self._producer_ids_next = await self.controller.allocate_producer_ids(
                AllocateProducerIdsRequest(node_id=self.node_id, broker_epoch=self.broker_epoch()),
                self.config.request_timeout_ms,
            )
        except KafkaError as error:
            raise KafkaError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE, f"no block of producer ids from the controller: {error}"
            ) from error
        finally:
            self._lease = None
