"""From one image to the next: records applied, and what they changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from strandline.controller.metadata.features import (
    METADATA_FEATURE,
    NO_LEVELS,
    OWN_LEVELS,
    FeatureLevelRecord,
    Supported,
    what_to_install,
)
from strandline.controller.metadata.image import MetadataImage, TopicInfo
from strandline.controller.metadata.levels import level_of
from strandline.controller.metadata.maps import MapDeltas
from strandline.controller.metadata.records import MetadataRecord, MetadataVersionRecord
from strandline.controller.metadata.table import BY_KIND, TABLE
from strandline.proto.errors import FatalError
from strandline.proto.ids import TopicId

_LEVELS, _NAMES, _TOPICS = MetadataImage.levels, MetadataImage.topics, MetadataImage.topic_by_id


class MetadataDelta(MapDeltas):
    """Applies records to the maps of `base`, each copied when it is first written, and remembers what they touched.

    `delta[map]` has what changed in one map, such as `delta[MetadataImage.brokers].changed`, in the order of first
    change, so that every process sees one order. Topics have names of their own here.

    A record that does not fit the image (an unknown topic, an ISR outside the replicas) raises FatalError: metadata
    that cannot be replayed is damaged, and nothing may be decided, least of all deleted, on its word (schedule 31).
    """

    def __init__(self, base: MetadataImage, supported: Supported = OWN_LEVELS) -> None:
        """`supported`: the levels that this node's build knows."""
        super().__init__(base.maps)
        self.base = base
        self._supported = supported
        self._level = base.metadata_version

    @property
    def partitions(self) -> Mapping[TopicId, Mapping[int, None]]:
        """The numbers of partitions that were created or changed, by topic; deleted topics are not in it."""
        return self[_TOPICS].changed

    @property
    def created_topics(self) -> list[TopicId]:
        """Ids of the topics that are not in `base`, or were deleted before they were created again."""
        topics = self[_TOPICS]
        return [topic_id for topic_id in topics.changed if topic_id not in topics.base or topic_id in topics.removed]

    @property
    def deleted_topics(self) -> Mapping[TopicId, TopicInfo]:
        """Id -> the topic as `base` has it."""
        return self[_TOPICS].removed

    @property
    def empty(self) -> bool:
        """True if nothing changed."""
        return not any(self._deltas.values())

    def apply_all(self, records: Iterable[MetadataRecord]) -> None:
        """Apply records in order. Raises FatalError for one that does not fit."""
        for record in records:
            self.apply(record)

    def apply(self, record: MetadataRecord) -> None:
        """Apply one record. Raises FatalError when it does not fit the image, or its level is not finalized."""
        row = BY_KIND[type(record)]
        if self._level == 0 and row.kind is not MetadataVersionRecord:
            raise FatalError("The metadata does not begin with its metadata.version record: it is damaged.")
        if row.of is _LEVELS:
            self._require_known(record)
            row.replay(self, record)
            self._level = self[_LEVELS].now[METADATA_FEATURE]
        else:
            row.replay(self, record)
        needed = level_of(record)
        if needed > self._level:  # rule A32/records-of-a-level-that-is-not-finalized
            raise FatalError(
                f"A {type(record).__name__} needs {METADATA_FEATURE} {needed}, and the cluster is at {self._level}: "
                "raise it by `strandline upgrade finalize`."
            )

    def _require_known(self, record: MetadataRecord) -> None:
        """Check that this node's build supports the levels of a record. Raises FatalError if not."""
        if isinstance(record, MetadataVersionRecord):
            name, level, release = METADATA_FEATURE, record.level, record.release
        elif isinstance(record, FeatureLevelRecord):
            name, level, release = record.name, record.level, record.release
        else:
            return
        known = self._supported.get(name, NO_LEVELS)
        if level not in known:  # rule A32/a-level-of-a-newer-build-is-replayed
            raise FatalError(
                f"The metadata log is of {name} {level}; this program knows {known}. "
                f"Install {what_to_install(release)} on this node."
            )

    def check_whole(self) -> None:
        """A batch was applied whole. Raises FatalError for a topic without partitions, which no snapshot holds."""
        if not self[_NAMES]:
            return
        topics = self[_TOPICS]
        for topic_id in self.created_topics:
            if not topics.parts(topic_id):  # rule A10/metadata-that-cannot-be-is-loaded
                raise FatalError(f"Topic {topic_id} is created without partitions: the metadata is damaged.")

    def image(self, offset: int, epoch: int, timestamp_ms: int) -> MetadataImage:
        """The image after all records applied so far, the last of which stands at `offset`. Raises as `check_whole`."""
        self.check_whole()
        topics, names = self[_TOPICS], self[_NAMES]
        maps = {**self.base.maps}
        for name, delta in self._deltas.items():
            maps[name] = delta.finished()
        if topics.changed:
            by_id = maps[_TOPICS.name]
            for topic_id in topics.changed:
                topic = by_id[topic_id]
                names.put(topic.record.name, topic)
            maps[_NAMES.name] = names.finished()
        return MetadataImage(self.base.cluster_id, offset=offset, epoch=epoch, timestamp_ms=timestamp_ms, **maps)


def diff(old: MetadataImage, new: MetadataImage) -> MetadataDelta:
    """What changed between two images that share no history, as after the load of a snapshot.

    The result's `base` is `old`; it describes, and must not be applied further.
    """
    delta = MetadataDelta(old)
    for of in {row.of.name: row.of for row in TABLE.values()}.values():
        delta[of].compare(new[of])
    return delta
