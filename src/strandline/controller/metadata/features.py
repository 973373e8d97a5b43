"""Features and their levels (KIP-584, KIP-778, KIP-1022): what each level adds, and whether it can be left again.

A build can do more than its cluster does. The cluster's *finalized* levels say what may be written into the metadata
log, so that a roll to a new build can be taken back until the levels are raised (`strandline upgrade finalize`). The
names are Kafka's; the numbers of metadata.version are our own.

One row a level: whoever adds a record, a field or a rule of replay adds a row to `metadata.version` and names its level
in the table of records or in `FIELD_LEVELS` (`strandline.controller.metadata.levels`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from strandline.controller.metadata.records import MetadataRecord, MetadataVersionRecord
from strandline.proto.messages.fields import UInt32

METADATA_FEATURE = "metadata.version"
TRANSACTION_FEATURE = "transaction.version"
KRAFT_FEATURE = "kraft.version"

TRANSACTION_TOPIC = "__transaction_state"
"""The topic in which transactions are kept: the first of them makes it, so without it there has been none."""


class Level(NamedTuple):
    """One level of a feature.

    Attributes:
        release: the first release that knows it; empty: builds from before the first release do.
        adds: what it brings, for people.
        can_be_left: a cluster can go back to the level below.
        leaving: what that costs, or why it cannot be.
        kept_by: a topic that there is once something of the level is written: while it exists, the level cannot be left
            whatever `can_be_left` says. Empty: none.
    """

    number: int
    release: str
    adds: str
    can_be_left: bool
    leaving: str
    kept_by: str = ""


class Range(NamedTuple):
    """The levels that a build knows, from `first` to `last`."""

    first: int
    last: int

    def __contains__(self, level: object) -> bool:
        return isinstance(level, int) and self.first <= level <= self.last

    def __str__(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first} to {self.last}"


@dataclass(frozen=True, slots=True)
class Feature:
    """A feature of the cluster.

    Attributes:
        implied: its level where the metadata have no record of it.
        levels: all that this build knows, in order.
        begins: the level at which a new cluster has it; None: `implied`.
        named: it rises where it is named alone, not with all others.
    """

    name: str
    implied: int
    levels: tuple[Level, ...]
    begins: int | None = None
    named: bool = False

    @property
    def supported(self) -> Range:
        """Levels that this build supports."""
        return Range(self.levels[0].number, self.levels[-1].number)


FIRST_LEVEL = 1
"""Level of metadata.version that every build can replay."""

LEVEL_OF_FEATURES = 2
"""Level of metadata.version from which the levels of other features are in the metadata."""

LEVEL_OF_MOVES = 3
"""Level of metadata.version from which partitions can be moved between brokers, with what operators need for that."""

_NOT_BELOW = "there is no level below"

FEATURES: Mapping[str, Feature] = {
    feature.name: feature
    for feature in (
        Feature(
            METADATA_FEATURE,
            FIRST_LEVEL,
            (
                Level(FIRST_LEVEL, "", "all records of the builds before there were levels", False, _NOT_BELOW),
                Level(
                    LEVEL_OF_FEATURES,
                    "0.1.0",
                    "levels of the other features, as records of the metadata log",
                    True,
                    "safe while each other feature is at the level that it has without a record; else unsafe: it falls "
                    "back to that",
                ),
                Level(
                    LEVEL_OF_MOVES,
                    "0.1.0",
                    "moves of partitions between brokers (KIP-455); subscriptions to clients' metrics (KIP-714)",
                    True,
                    "safe while no partition moves and no client metrics are subscribed to: builds before would not "
                    "know of it",
                ),
            ),
        ),
        Feature(
            "eligible.leader.replicas.version",
            1,
            (Level(1, "", "eligible leader replicas (KIP-966), always on", False, _NOT_BELOW),),
        ),
        Feature(
            "group.version", 1, (Level(1, "", "the consumer group protocol (KIP-848), always on", False, _NOT_BELOW),)
        ),
        Feature(
            KRAFT_FEATURE,
            0,
            (
                Level(0, "", "voters as the directories were formatted", False, _NOT_BELOW),
                Level(
                    1,
                    "0.1.0",
                    "controllers that are added and removed while the cluster runs (KIP-853)",
                    False,
                    "builds before look for the voters in their configuration, and cannot read who votes by then",
                ),
            ),
            named=True,
        ),
        Feature(
            TRANSACTION_FEATURE,
            0,
            (
                Level(0, "", "no transactions", False, _NOT_BELOW),
                Level(
                    1,
                    "0.1.0",
                    "transactions as clients before Kafka 4 make them; their states in flexible records (KIP-915)",
                    True,
                    f"safe until the first transaction; while there is {TRANSACTION_TOPIC} it cannot be left: builds "
                    "before would show what is open or aborted, and would end nothing",
                    kept_by=TRANSACTION_TOPIC,
                ),
                Level(
                    2,
                    "0.1.0",
                    "each end of a transaction raises its producer's epoch, so that nothing late reaches the next one "
                    "(KIP-890)",
                    True,
                    "safe: each transaction ends by the protocol that it began with",
                ),
            ),
            begins=2,
        ),
    )
}
"""Name -> feature."""


@dataclass(frozen=True, slots=True)
class FeatureLevelRecord(MetadataRecord):
    """A feature other than metadata.version has this level from now on; 0: none.

    Attributes:
        release: the first release that knows the level, for builds that do not.
    """

    name: Annotated[str, 1]
    level: Annotated[int, UInt32(2)]
    release: Annotated[str, 3] = ""


Supported = Mapping[str, Range]
"""The levels that a build knows, by feature."""

OWN_LEVELS: Supported = {feature.name: feature.supported for feature in FEATURES.values()}
"""Feature -> levels that this build supports."""

NEWEST_LEVEL = OWN_LEVELS[METADATA_FEATURE].last
"""Newest level of metadata.version that this build knows."""

BEFORE_LEVELS: Supported = {feature.name: Range(feature.implied, feature.implied) for feature in FEATURES.values()}
"""Feature -> levels of builds that report none, because they are from before feature levels."""

NO_LEVELS = Range(0, 0)
"""Levels of a feature that a build does not mention."""


def supported_by(told: Iterable[tuple[str, int, int]]) -> Supported:
    """The levels that a build knows, as it tells them itself."""
    ranges = {name: Range(first, last) for name, first, last in told}
    return ranges or BEFORE_LEVELS


def finalized_levels(recorded: Mapping[str, int]) -> dict[str, int]:
    """The level of every feature, by name, of those that the metadata have a record of; none without a record."""
    return {**{name: feature.implied for name, feature in FEATURES.items()}, **recorded} if recorded else {}


def first_features() -> dict[str, int]:
    """The levels of the features of which the metadata of a new cluster have a record, but for metadata.version."""
    first = {name: one.implied if one.begins is None else one.begins for name, one in FEATURES.items()}
    return {name: level for name, level in first.items() if name != METADATA_FEATURE and level > 0}


def release_of(name: str, level: int) -> str:
    """The first release that knows a level; empty where every build does, or this one does not know it."""
    feature = FEATURES.get(name)
    return next((one.release for one in feature.levels if one.number == level), "") if feature else ""


def what_to_install(release: str) -> str:
    """The build that a level needs, in words."""
    return f"Strandline {release} or newer" if release else "the build that wrote it"


def excluded(levels: Mapping[str, int], supported: Supported) -> list[str]:
    """The levels that a build does not support, as a sentence; "" if it supports all."""
    return [
        f"{name} {level} (the build knows {supported.get(name, NO_LEVELS)}; {what_to_install(release_of(name, level))} "
        "does)"
        for name, level in sorted(levels.items())
        if level not in supported.get(name, NO_LEVELS)
    ]


def level_records(metadata_version: int, features: Mapping[str, int]) -> list[MetadataRecord]:
    """The records that give a cluster these levels: first of its log, and of each snapshot."""
    release = release_of(METADATA_FEATURE, metadata_version)
    records: list[MetadataRecord] = [MetadataVersionRecord(metadata_version, release)]
    records.extend(
        FeatureLevelRecord(name, features[name], release_of(name, features[name])) for name in sorted(features)
    )
    return records


def first_levels(metadata_version: int) -> list[MetadataRecord]:
    """The first records of a cluster that begins at this level."""
    return level_records(metadata_version, first_features() if metadata_version >= LEVEL_OF_FEATURES else {})


def is_level(record: MetadataRecord) -> bool:
    """A record of `level_records`."""
    return isinstance(record, MetadataVersionRecord | FeatureLevelRecord)
