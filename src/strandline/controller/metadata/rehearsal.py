"""Records tried before this node appends them: the replay, on a copy of the image that nobody else sees."""

from __future__ import annotations

from collections.abc import Iterable

from strandline.controller.metadata.delta import MetadataDelta
from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.publisher import ImagePublisher
from strandline.controller.metadata.records import decode_records
from strandline.controller.metadata.snapshot import load_image
from strandline.controller.quorum.api import CommittedBatch


class ImageRehearsal:
    """The quorum's `Rehearsal` on the metadata image: the code that replays what is committed, run before the append.

    The images share all that did not change with the publisher's: what it costs is the replay itself, once more.
    """

    def __init__(self, publisher: ImagePublisher) -> None:
        self._publisher = publisher
        self._image: MetadataImage = publisher.image

    def restart(self) -> None:
        """Begin anew on what is committed and handed over."""
        self._image = self._publisher.image

    def replay(self, batch: CommittedBatch) -> None:
        """Replay the next batch. Raises FatalError if that cannot be; then nothing has changed."""
        delta = MetadataDelta(self._image)
        delta.apply_all(decode_records(batch.records))
        self._image = delta.image(batch.last_offset, batch.epoch, batch.timestamp_ms)

    def load(self, end_offset: int, epoch: int, records: Iterable[bytes]) -> None:
        """Try a snapshot. Raises FatalError if it cannot be loaded."""
        load_image(self._publisher.image.cluster_id, decode_records(records), end_offset, epoch)
