"""Where records go (rows S06, S07, S08)."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.client.metadata import PartitionView, TopicView
from strandline.client.open_batches import OpenBatches
from strandline.client.partitioner import StickyPartitioner, murmur2, partition_of_key

KAFKAS_VECTORS = [
    (b"21", -973932308),
    (b"foobar", -790332482),
    (b"a-little-bit-long-string", -985981536),
    (b"a-little-bit-longer-string", -1486304829),
    (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
    (b"abc", 479470107),
]


@pytest.mark.parametrize(("key", "digest"), KAFKAS_VECTORS)
def test_murmur2_is_kafkas(key: bytes, digest: int) -> None:
    """Row S06: the vectors of Kafka's own test (UtilsTest.testMurmur2)."""
    assert murmur2(key) == digest & 0xFFFFFFFF


@given(st.binary(max_size=200), st.integers(1, 100))
def test_equal_keys_go_to_equal_partitions(key: bytes, partitions: int) -> None:
    """Row S06: the partition depends on key and count alone: hash with the sign bit off, modulo the count."""
    chosen = partition_of_key(key, partitions)
    assert chosen == (murmur2(key) & 0x7FFFFFFF) % partitions == partition_of_key(bytes(bytearray(key)), partitions)


class Sticky:
    """The partitioner with the open batches that count its bytes."""

    def __init__(self, batch_size: int, rng: random.Random) -> None:
        self._partitioner = StickyPartitioner(batch_size, rng)
        self._open_batches = OpenBatches(1, None)

    def choose(self, view: TopicView, size: int) -> int:
        if self._open_batches.partitions != view.partition_count:
            self._open_batches = OpenBatches(view.partition_count, None)
        chosen = self._partitioner.choose(view, self._open_batches)
        self._open_batches.spend(size)
        return chosen


def topic(partitions: int, leaderless: frozenset[int] = frozenset()) -> TopicView:
    views = {n: PartitionView(None if n in leaderless else 1, 0, (1,), (1,), ()) for n in range(partitions)}
    return TopicView("t", None, False, views)


@given(st.integers(1, 12), st.integers(0, 2**32), st.lists(st.integers(20, 400), min_size=200, max_size=400))
def test_sticky_batches_spread_evenly(partitions: int, seed: int, sizes: list[int]) -> None:
    """Row S08, KIP-794: partitions get equally many batches but for one, each at most one record too large."""
    batch_size = 1_000
    sticky = Sticky(batch_size, random.Random(seed))
    view = topic(partitions)
    batches: list[list[int]] = []  # partition and bytes of each
    for size in sizes:
        full = not batches or batches[-1][1] >= batch_size
        chosen = sticky.choose(view, size)
        if full:
            batches.append([chosen, 0])
        assert chosen == batches[-1][0]
        batches[-1][1] += size
    assert all(size < batch_size + 400 for _, size in batches)
    got = Counter(dict.fromkeys(range(partitions), 0))
    got.update(partition for partition, _ in batches)
    assert max(got.values()) - min(got.values()) <= 1


def test_nine_thousand_records_over_three_partitions() -> None:
    """Row S08: each partition holds 20 to 47 % of them."""
    for seed in range(50):
        sticky = Sticky(16_384, random.Random(seed))
        view = topic(3)
        counts = Counter(sticky.choose(view, 31) for _ in range(9_000))
        assert all(0.20 <= counts[number] / 9_000 <= 0.47 for number in range(3)), counts


def test_sticky_keeps_clear_of_partitions_without_a_leader() -> None:
    """Records without a key need not wait for an election; with no leader at all they do."""
    sticky = Sticky(10, random.Random(1))
    view = topic(4, leaderless=frozenset({0, 2}))
    assert {sticky.choose(view, 10) for _ in range(20)} == {1, 3}
    nobody = topic(2, leaderless=frozenset({0, 1}))
    assert sticky.choose(nobody, 10) in (0, 1)
    assert {sticky.choose(nobody, 10) for _ in range(8)} <= {0, 1}


def test_sticky_finds_new_partitions() -> None:
    """Row S35: partitions added later get their share."""
    sticky = Sticky(10, random.Random(1))
    for _ in range(6):
        sticky.choose(topic(2), 10)
    assert {sticky.choose(topic(6), 10) for _ in range(24)} == set(range(6))
