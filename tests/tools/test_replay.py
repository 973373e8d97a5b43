"""What a replay of dead letters sends at once (`strandline.tools.replay`); the whole way is in `test_real_groups`."""

from __future__ import annotations

import json

import pytest

from strandline.client.types import ConsumerRecord
from strandline.tools.dead_letters import dead_headers
from strandline.tools.replay import batches

OFFSET_METADATA_MAX_BYTES = 4096
"""Kafka's default of offset.metadata.max.bytes, and ours."""


def letter(offset: int, topic: str, partition: int) -> ConsumerRecord:
    """A dead letter of one partition's record."""
    origin = ConsumerRecord(topic, partition, 2**62, 0, 0, None, None, (), -1)
    headers = dead_headers(origin, ValueError("no"), 1, "g")
    return ConsumerRecord(f"{topic}.dead", 0, offset, 0, 0, None, None, headers, -1)


@pytest.mark.parametrize("topic", ["t", "x" * 240])
def test_the_note_of_a_batch_fits_beside_an_offset(topic: str) -> None:
    """Letters of 300 partitions in one of the dead topic: it was made when the topic had fewer. The note names the
    partitions of a batch, and of the interrupted one before it."""
    letters = [letter(number, topic, number % 300) for number in range(900)]
    found = list(batches(letters))
    assert [record for batch in found for record in batch] == letters
    assert max(map(len, found)) <= 500
    for batch in found:
        ends = {number.offset % 300: 2**63 - 1 for number in batch}
        note = json.dumps([[topic, partition, end] for partition, end in ends.items()])
        assert 2 * len(note) <= OFFSET_METADATA_MAX_BYTES


def test_letters_of_one_partition_go_by_the_hundred() -> None:
    """And records that are no letters with them."""
    letters = [letter(number, "t", 0) for number in range(700)]
    letters[3] = ConsumerRecord("t.dead", 0, 3, 0, 0, None, b"foreign", (), -1)
    assert [len(batch) for batch in batches(letters)] == [500, 200]
