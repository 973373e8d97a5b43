"""A cluster that is lost in the middle of a run, with every disk, and made again of what the object store has.

The new one has the same addresses and another id, as after a fire. Its clients know of nothing: producers go on with
the ids and the sequences that they have, and retry what was under way. What had not come to the store may be gone, and
other records may stand at its offsets; nothing else may be missing, and no acknowledgement of the new cluster is void.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass

from strandline.chaos.checkers.history import History, Partition, Poll, Send, Status
from strandline.chaos.checkers.invariant import InvariantViolated
from strandline.chaos.checkers.partitions import restored_end
from strandline.chaos.sim.object_store import SimStore
from strandline.chaos.sim.ports import Ports
from strandline.chaos.sim.process import Process
from strandline.chaos.workload import WorkloadOptions
from strandline.client.aio import Admin
from strandline.client.errors import ClientError
from strandline.client.types import NewTopic
from strandline.controller.metadata.image import MetadataImage
from strandline.log.object_store import ObjectStore
from strandline.log.tier.restoring import TOPIC_ID, bring, find_stored_topics
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError, StrandlineError
from strandline.proto.tier import Tier
from strandline.tools.tier_restore import MEANWHILE, choose

RESTORED_SHARE = 0.4
"""Share of the seeds with tiered topics, but those with services or users: the whole cluster is lost and restored.
"""

QUIET_MS = 10_000
"""Milliseconds after the loss: whatever an old node had sent has come to its end."""

_RETRY_S = 0.2


@dataclass
class RestoredOptions:
    """Drawn options of the loss and the restore."""

    after: float
    """Share of the time of faults."""
    newcomers: bool
    """True if new producers are started beside the ones that continue."""

    @classmethod
    def draw(cls, rng: random.Random) -> RestoredOptions:
        return cls(after=rng.choice((0.5, 0.7, 0.9)), newcomers=rng.random() < 0.5)


class Restorer:
    """Simulated operator that does what `strandline tier restore` does, once for each topic, and again until it is
    done. A topic of which the store has nothing is created empty."""

    def __init__(self, bootstrap: str, store: SimStore, workload: WorkloadOptions) -> None:
        self.done = False
        self.errors: dict[str, int] = {}
        self._bootstrap = bootstrap
        self._store = store
        self._workload = workload

    async def main(self, ports: Ports, process: Process) -> None:
        """The operator's process."""
        store = self._store.for_node(process)
        async with Admin(self._bootstrap, clock=ports.clock, rng=ports.rng) as admin:
            waiting = list(self._workload.topics)
            while waiting:
                if await self._is_made(admin, store, waiting[0]):
                    del waiting[0]
                await asyncio.sleep(_RETRY_S)
        self.done = True

    async def _is_made(self, admin: Admin, store: ObjectStore, topic: str) -> bool:
        try:
            cluster_id = (await admin.describe_cluster()).cluster_id or ""
            configs = {**self._workload.topic_configs, **MEANWHILE}
            if found := await find_stored_topics(store, topic, _told):
                stored = choose(found, cluster_id, topic_id=None, cluster_id=None)
                await bring(store, store, stored, cluster_id, is_same_store=True, report=_told)
                configs[TOPIC_ID] = str(stored.topic_id)
            await admin.create_topics([NewTopic(topic, self._workload.topics[topic], 3, configs)])
        except (ClientError, StrandlineError) as error:
            what = error.code.name if isinstance(error, KafkaError) else type(error).__name__
            self.errors[what] = self.errors.get(what, 0) + 1
            return isinstance(error, KafkaError) and error.code is ErrorCode.TOPIC_ALREADY_EXISTS
        return True


def _told(done: int, total: int) -> None:
    """Nobody watches."""


def tiers_of(image: MetadataImage) -> dict[Partition, Tier]:
    """Tiers that a cluster's metadata name, by partition."""
    names = {topic_id: topic.name for topic_id, topic in image.topic_by_id.items()}
    return {Partition(names[where.topic_id], where.partition): tier for where, tier in image.tiers.items()}


class Restoration:
    """Parts of a history that count once a cluster was lost and restored, topic by topic."""

    def __init__(self, history: History, lost: MetadataImage) -> None:
        """`history` when the last word of the old cluster has come; `lost`: its last metadata."""
        self._history = history
        self._promised = tiers_of(lost)
        self._acked: list[Send] = [send for send in history.sends if send.status is Status.OK]
        self._polls = len(history.polls)
        self._settled: dict[str, None] = {}

    def settle(self, image: MetadataImage) -> list[str]:
        """Look for topics that are there now: what was acknowledged or shown of their records that were not in the
        store is forgotten. Returns their names. Raises InvariantViolated (TierIsRestored)."""
        ends = {where: restored_end(tier) for where, tier in tiers_of(image).items()}
        settled = [name for name in image.topics if name not in self._settled]
        for name in settled:
            self._settled[name] = None
            self._check(name, ends)
            self._forget(name, ends)
        return settled

    def _check(self, topic: str, ends: Mapping[Partition, int]) -> None:
        for where, tier in self._promised.items():
            if where.topic == topic and ends.get(where, 0) < tier.end_offset:
                facts = {"partition": str(where), "restored_end": ends.get(where, 0), "tier_end": int(tier.end_offset)}
                raise InvariantViolated("TierIsRestored", "records that were in the store are not restored", **facts)

    def _forget(self, topic: str, ends: Mapping[Partition, int]) -> None:
        for send in self._acked:
            if send.partition.topic == topic and (send.offset is None or send.offset >= ends.get(send.partition, 0)):
                send.status, send.offset = Status.INFO, None
        polls = self._history.polls
        kept: list[Poll] = []
        for poll in polls[: self._polls]:
            poll.records = [one for one in poll.records if one[0].topic != topic or one[1] < ends.get(one[0], 0)]
            if poll.records:
                kept.append(poll)
        polls[: self._polls] = kept
        self._polls = len(kept)
