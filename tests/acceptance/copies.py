"""What the tests of `topic copy` share: a source of every kind of record, and whether a copy is one."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from strandline.client import ConsumerRecord, Producer
from strandline.client.partitioner import partition_of_key
from tests.acceptance.topics import create, drain

LONG_AGO_MS = 1_000_000_000_000
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
STRANDLINE = "strandline.cli.main"


def fill(bootstrap: str, topic: str, count: int, *, keys: int = 97, size: int = 0, first: int = 0) -> None:
    """Send records, no two alike: each seventh without a key; some without a value; some with headers; in every codec,
    with times that go forth and back."""
    each = -(-count // len(CODECS))
    for place, codec in enumerate(CODECS):
        with Producer(bootstrap, compression_type=codec, linger_ms=20, batch_size=65_536) as producer:
            for number in range(first + place * each, first + min((place + 1) * each, count)):
                producer.send(
                    topic,
                    None if number % 10 == 9 else b"%d " % number + b"x" * size,
                    key=None if number % 7 == 6 else b"key %d" % (number % keys),
                    headers=[("n", b"%d" % number), ("none", None), ("n", b"")] if number % 3 == 0 else (),
                    timestamp_ms=LONG_AGO_MS + number - 5 * (number % 2),
                )


def make_source(bootstrap: str, topic: str, count: int, partitions: int = 3, **shape: int) -> None:
    """A topic with such records, which are too old for the usual retention."""
    create(bootstrap, topic, partitions, configs={"retention.ms": "-1"})
    fill(bootstrap, topic, count, **shape)


def essence(record: ConsumerRecord) -> tuple[Any, ...]:
    """What a copy keeps."""
    return record.key, record.value, tuple(record.headers), record.timestamp_ms


def by_key(records: Iterable[ConsumerRecord]) -> dict[bytes, list[tuple[Any, ...]]]:
    """The records of each key, in order."""
    found: dict[bytes, list[tuple[Any, ...]]] = defaultdict(list)
    for record in sorted(records, key=lambda one: (one.partition, one.offset)):
        if record.key is not None:
            found[record.key].append(essence(record))
    return dict(found)


def assert_copied(source: Sequence[ConsumerRecord], target: Sequence[ConsumerRecord], partitions: int) -> None:
    """Every record once, each key in its order and where clients look for it."""
    assert len(target) == len(source)
    assert Counter(map(essence, target)) == Counter(map(essence, source))
    assert by_key(target) == by_key(source)
    for record in target:
        if record.key is not None:
            assert record.partition == partition_of_key(record.key, partitions)


def check(bootstrap: str, source: str, target: str, partitions: int, *, of: int = 3) -> list[ConsumerRecord]:
    """Read both and compare them; the target's records."""
    copied = drain(bootstrap, target, partitions)
    assert_copied(drain(bootstrap, source, of), copied, partitions)
    return copied
