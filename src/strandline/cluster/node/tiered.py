"""A broker's part in tiered storage (KIP-405): the object store, its reader, and its reaper."""

from __future__ import annotations

from collections.abc import Callable

from strandline.cluster.node.parts import NodeParts
from strandline.cluster.node.replica_feed import tier_changer, tier_reaper
from strandline.cluster.node.tier_reaper import TierReaper
from strandline.controller.channel import ControllerChannel
from strandline.log.object_store import ObjectStore
from strandline.log.tier.reading import TierReader
from strandline.log.tier.restoring import tiers_to_adopt
from strandline.proto.ids import BrokerEpoch, TopicId
from strandline.proto.tier import AdoptedTier
from strandline.replica.tier_config import TierConfig
from strandline.replica.tiering import TierParts

READ_AHEAD_BYTES = 2 << 20
"""Bytes fetched ahead for a sequential reader: two GETs run while it consumes the previous data."""


def open_tier_store(config: TierConfig) -> ObjectStore:
    """Open the object store that the settings name. Raises ConfigError."""
    from strandline.log.object_store import open_store

    return open_store(config.url, config.options, timeout_ms=config.timeout_ms)


class NodeTier:
    """Tiered storage of a broker with `remote.log.storage.url`."""

    def __init__(
        self,
        node: NodeParts,
        channel: ControllerChannel,
        *,
        broker_epoch: Callable[[], BrokerEpoch],
        in_session: Callable[[], bool],
    ) -> None:
        """Open the store. Raises ConfigError if that fails with these settings."""
        config, node_id = node.config.tier, node.config.node
        self._fatal = node.fatal
        self._cluster_id = node.cluster_id
        self._believed = node.believed
        self.store = node.open_store(config)
        self.reader = TierReader(
            self.store,
            node.cluster_id,
            node.clock,
            cache_bytes=config.cache_bytes,
            index_cache_bytes=config.index_cache_bytes,
            concurrency=config.reads_max,
            read_ahead_bytes=READ_AHEAD_BYTES,
        )
        self.parts = TierParts(self.store, self.reader, config, tier_changer(node_id, channel, broker_epoch))
        self.reaper = TierReaper(
            node_id=node_id,
            store=self.store,
            cluster_id=node.cluster_id,
            image=lambda: node.publisher.image,
            clock=node.clock,
            config=config,
            in_session=in_session,
            reaped=tier_reaper(node_id, channel, broker_epoch),
        )

    def start(self) -> None:
        """Start the periodic deletion of unneeded objects."""
        self.reaper.start(self._fatal)

    async def find_tiers(self, topic: str, topic_id: TopicId, allow_loss: bool) -> tuple[AdoptedTier, ...]:
        """Find a topic's segments in the store; see `FindTiers`. Raises KafkaError, StoreError."""
        now_ms = self._believed.latest_ms()
        return await tiers_to_adopt(self.store, self._cluster_id, topic, topic_id, allow_loss=allow_loss, now_ms=now_ms)

    async def close(self) -> None:
        """Close reaper, reader and store; the replicas must be closed before."""
        await self.reaper.stop()
        await self.reader.close()
        await self.store.close()
