"""Replays the committed metadata log into the node's image, calls subscribers, and tries records before an append."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from strandline.controller.metadata.delta import MetadataDelta, diff
from strandline.controller.metadata.features import OWN_LEVELS, Supported
from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.snapshot import image_records, load_image, load_steps
from strandline.controller.metadata.table import decode_record, decode_records, encode_record
from strandline.controller.quorum.api import CommittedBatch, LeaderAndEpoch
from strandline.proto.errors import FatalError
from strandline.proto.steps import Steps

MetadataSubscriber = Callable[[MetadataDelta, MetadataImage], None]
"""Called as `on_metadata(delta, image)` after each committed batch or snapshot; the image before is `delta.base`."""

LeaderSubscriber = Callable[[LeaderAndEpoch], None]
"""Called with the quorum's leader and epoch when they change."""


class ImagePublisher:
    """A `QuorumListener` that holds the committed image of this node (rule A13: nothing uncommitted is ever in it).

    Subscribers are called synchronously, in the order of subscription, once per committed batch or snapshot load, and
    must not block. A subscriber that joins late is called at once with everything that is there.
    """

    def __init__(self, cluster_id: str, supported: Supported = OWN_LEVELS) -> None:
        """`supported`: the levels that this node's build knows."""
        self.image = MetadataImage(cluster_id)
        self.supported = supported
        self._subscribers: list[MetadataSubscriber] = []
        self._leader_subscribers: list[LeaderSubscriber] = []

    def subscribe(self, subscriber: MetadataSubscriber) -> None:
        """Call `subscriber` for what is there now (unless that is nothing) and for every change to come."""
        self._subscribers.append(subscriber)
        if self.image.offset >= 0:
            subscriber(diff(MetadataImage(self.image.cluster_id), self.image), self.image)

    def unsubscribe(self, subscriber: MetadataSubscriber) -> None:
        """Never call it again. Unknown subscribers are fine."""
        if subscriber in self._subscribers:
            self._subscribers.remove(subscriber)

    def subscribe_leader(self, subscriber: LeaderSubscriber) -> None:
        """Call `subscriber` at every change of the quorum's leader, so that a wait for one needs no polling."""
        self._leader_subscribers.append(subscriber)

    async def reached(self, offset: int, timeout_ms: float) -> bool:
        """Wait until the image holds everything up to `offset`; False: it does not yet, and the time is over."""
        if self.image.offset >= offset:
            return True
        reached = asyncio.Event()

        def look(_: MetadataDelta, image: MetadataImage) -> None:
            if image.offset >= offset:
                reached.set()

        self._subscribers.append(look)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await reached.wait()
        except TimeoutError:
            return False
        finally:
            self.unsubscribe(look)
        return True

    # QuorumListener

    def handle_commit(self, batch: CommittedBatch) -> None:
        """Apply one committed batch. Raises FatalError for records that cannot be replayed."""
        if batch.base_offset <= self.image.offset:
            raise FatalError(
                f"The quorum committed offset {batch.base_offset} after {self.image.offset} had been applied already."
            )
        delta = MetadataDelta(self.image, self.supported)
        for data in batch.records:
            delta.apply(decode_record(data))
        self._publish(delta, delta.image(batch.last_offset, batch.epoch, batch.timestamp_ms))

    def handle_load_snapshot(self, end_offset: int, epoch: int, records: Iterable[bytes]) -> None:
        """Replace the image. Raises FatalError for a snapshot that is damaged or older than what was applied."""
        if end_offset <= self.image.offset:
            raise FatalError(
                f"A metadata snapshot that ends at {end_offset} was loaded after {self.image.offset} had been applied."
            )
        image = load_image(self.image.cluster_id, map(decode_record, records), end_offset, epoch, self.supported)
        self._publish(diff(self.image, image), image)

    def handle_leader_change(self, leader_and_epoch: LeaderAndEpoch) -> None:
        """Call the subscribers; the image stays, for what is committed stays so."""
        for subscriber in list(self._leader_subscribers):
            subscriber(leader_and_epoch)

    def take_snapshot(self) -> tuple[int, int, Iterable[bytes]] | None:
        """The committed image as a snapshot: (end offset, epoch, records); None while there is nothing in it. The
        records are made as they are asked for, of the image as it is now."""
        image = self.image
        if image.metadata_version == 0:
            return None
        # rule A13/snapshot-named-behind-its-state, rule A13/snapshot-named-ahead-of-its-state
        return image.offset + 1, image.epoch, map(encode_record, image_records(image))

    def _publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
        self.image = image
        for subscriber in list(self._subscribers):
            subscriber(delta, image)


class ImageRehearsal:
    """The quorum's `Rehearsal` on a private copy of the image: the replay of committed records, run before the append.

    The copy shares with the publisher's image all that did not change, so a rehearsal costs one more replay.
    """

    def __init__(self, publisher: ImagePublisher) -> None:
        self._publisher = publisher
        self._image: MetadataImage = publisher.image

    def restart(self) -> None:
        """Begin anew on what is committed and handed over."""
        self._image = self._publisher.image

    def replay(self, batch: CommittedBatch) -> None:
        """Replay the next batch. Raises FatalError if that cannot be; then nothing has changed."""
        delta = MetadataDelta(self._image, self._publisher.supported)
        delta.apply_all(decode_records(batch.records))
        self._image = delta.image(batch.last_offset, batch.epoch, batch.timestamp_ms)

    def load(self, end_offset: int, epoch: int, records: Iterable[bytes]) -> Steps[None]:
        """Try a snapshot. Raises FatalError if it cannot be loaded."""
        publisher = self._publisher
        decoded = map(decode_record, records)
        yield from load_steps(publisher.image.cluster_id, decoded, end_offset, epoch, publisher.supported)
