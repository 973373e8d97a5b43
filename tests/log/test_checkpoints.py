"""The small files, in Kafka's formats, and each of them half-written."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.log.checkpoints import (
    MetaProperties,
    decode_checkpoint,
    decode_epochs,
    decode_id,
    decode_offsets,
    decode_partition_metadata,
    decode_properties,
    encode_clean_shutdown,
    encode_epochs,
    encode_id,
    encode_offsets,
    encode_partition_metadata,
    read_clean_shutdown,
)
from strandline.log.disk import write_file_durably
from strandline.proto.errors import CorruptLogError
from strandline.proto.ids import NodeId, TopicPartition
from tests.log.helpers import TOPIC_ID, FailingDisk

OFFSETS = {TopicPartition("orders", 10): 7, TopicPartition("orders", 2): 0, TopicPartition("a.b_c-d", 0): 1 << 50}


def test_offsets_in_kafkas_format() -> None:
    """CheckpointFile: version, count, one entry a line."""
    data = encode_offsets(OFFSETS)
    assert data == b"0\n3\na.b_c-d 0 1125899906842624\norders 2 0\norders 10 7\n"
    assert decode_offsets("f", data) == OFFSETS
    assert decode_offsets("f", encode_offsets({})) == {}


def test_epochs_in_kafkas_format() -> None:
    """LeaderEpochCheckpointFile."""
    assert encode_epochs([(0, 0), (4, 100)]) == b"0\n2\n0 0\n4 100\n"
    assert decode_epochs("f", b"0\n2\n0 0\n4 100\n") == [(0, 0), (4, 100)]


def test_every_truncation_of_a_checkpoint_is_refused() -> None:
    """Bad input: a half-written checkpoint is never taken for a shorter one."""
    data = encode_offsets(OFFSETS)
    for size in range(len(data)):
        with pytest.raises(CorruptLogError) as caught:
            decode_offsets("/data/replication-offset-checkpoint", data[:size])
        assert caught.value.path == "/data/replication-offset-checkpoint"
        assert caught.value.position <= size
        assert "built anew from its copy" in caught.value.advice


@pytest.mark.parametrize(
    ("data", "position", "reason"),
    [
        (b"1\n0\n", 0, "version 1"),
        (b"x\n0\n", 0, "not numbers"),
        (b"0\n2\na 0 1\n", 2, "2 entries announced, 1 found"),
        (b"0\n1\na 0\n", 4, "is not an entry"),
        (b"0\n2\na 0 1\nb zero 1\n", 10, "is not an entry"),
        (b"0\n1\n\xff\xfe 0 1\n", 4, "is not an entry"),
        (b"", 0, "missing"),
    ],
)
def test_damage_is_located(data: bytes, position: int, reason: str) -> None:
    """The byte at which a checkpoint stops making sense."""
    with pytest.raises(CorruptLogError, match=reason) as caught:
        decode_offsets("f", data)
    assert caught.value.position == position


@given(st.binary(max_size=80))
def test_any_bytes(data: bytes) -> None:
    """Bad input: any file either parses or is a CorruptLogError."""
    try:
        entries = decode_checkpoint("f", data, str, "")
    except CorruptLogError as error:
        entries = [error.path]
    assert all(isinstance(entry, str) for entry in entries)


@given(st.uuids())
def test_ids_as_kafka_writes_them(identifier: UUID) -> None:
    """22 characters of url-safe base64."""
    text = encode_id(identifier)
    assert len(text) == 22
    assert decode_id(text) == identifier
    with pytest.raises(ValueError, match="16 bytes"):
        decode_id(text[:-4])


def test_meta_properties() -> None:
    """Version 1; comments and Java's escapes are understood; what is missing is named."""
    meta = MetaProperties("clusterA", NodeId(3), TOPIC_ID)
    data = meta.encode()
    assert data.startswith(b"version=1\ncluster.id=clusterA\nnode.id=3\ndirectory.id=")
    assert MetaProperties.decode("f", data) == meta
    assert MetaProperties.decode("f", b"#written by hand\n\n" + data) == meta
    assert decode_properties(b"a=c\\:d\nx: y\n! no\n") == {"a": "c:d", "x": "y"}
    for line in (b"version=1\n", b"cluster.id=clusterA\n", b"node.id=3\n"):
        with pytest.raises(CorruptLogError, match="missing"):
            MetaProperties.decode("f", data.replace(line, b""))
    for broken in (data.replace(b"=1\n", b"=2\n"), data.replace(b"=3\n", b"=three\n"), data[:-6] + b"\n"):
        with pytest.raises(CorruptLogError, match="format it again"):
            MetaProperties.decode("f", broken)


def test_partition_metadata() -> None:
    """PartitionMetadataFile."""
    data = encode_partition_metadata(TOPIC_ID)
    assert data == f"version: 0\ntopic_id: {encode_id(TOPIC_ID)}\n".encode()
    assert decode_partition_metadata("f", data) == TOPIC_ID
    for broken in (b"", data[:12], data[:-5], b"version: 1\ntopic_id: x\n"):
        with pytest.raises(CorruptLogError):
            decode_partition_metadata("f", broken)


def test_clean_shutdown_marker(disk: FailingDisk, tmp_path: Path) -> None:
    """CleanShutdownFileHandler's JSON; one that does not parse proves nothing."""
    assert encode_clean_shutdown(42) == b'{"version":0,"brokerEpoch":42}'
    path = f"{tmp_path}/.kafka_cleanshutdown"
    assert read_clean_shutdown(disk, path) is None
    write_file_durably(disk, path, encode_clean_shutdown(42))
    assert read_clean_shutdown(disk, path) == 42
    for broken in (b"", b"{", b"[]", b'{"version":0}', b'{"brokerEpoch":"x"}', b"\xff"):
        (tmp_path / ".kafka_cleanshutdown").write_bytes(broken)
        assert read_clean_shutdown(disk, path) is None
