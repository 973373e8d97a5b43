"""The small text files of a log directory, in Kafka's formats: offset and epoch checkpoints, ids, the clean-shutdown
marker.

Each is replaced as a whole (temp file, sync, rename, sync of the directory). So a half-written file means that another
program wrote it or that the disk is faulty: it is refused with path and line, and the caller decides what can be
rebuilt.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeVar
from uuid import UUID

import structlog
from crc32c import crc32c

from strandline.log.disk import Disk, read_file, write_synced_now
from strandline.proto.errors import CorruptLogError
from strandline.proto.ids import ZERO_UUID, NodeId, TopicId, TopicPartition
from strandline.proto.json_text import read_json
from strandline.proto.marks import mark

log = structlog.get_logger("strandline.log")

T = TypeVar("T")

META_PROPERTIES = "meta.properties"
HIGH_WATERMARKS = "replication-offset-checkpoint"
RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
CLEANER_OFFSETS = "cleaner-offset-checkpoint"
OFFSET_CHECKPOINTS = (HIGH_WATERMARKS, RECOVERY_POINTS, LOG_STARTS, CLEANER_OFFSETS)
LEADER_EPOCHS = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"

_VERSION = 0
_CHECKSUM = "crc32c"
CLEANER_VERSION = 1
"""Version of the cleaner's checkpoint; its entries also have the topic's id."""


def encode_id(identifier: UUID) -> str:
    """Encode a UUID as Kafka does: url-safe base64 without padding."""
    return base64.urlsafe_b64encode(identifier.bytes).rstrip(b"=").decode()


def decode_id(text: str) -> UUID:
    """Decode a UUID that `encode_id` encoded. Raises ValueError."""
    raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if len(raw) != 16:
        raise ValueError(f"{text!r} does not hold 16 bytes")
    return UUID(bytes=raw)


# ---------------------------------------------------------------------- checkpoints: version, count, one entry a line


def encode_checkpoint(lines: Iterable[str], version: int = _VERSION) -> bytes:
    """Encode a checkpoint: version, number of entries, the entries."""
    entries = list(lines)
    return "".join(f"{line}\n" for line in [str(version), str(len(entries)), *entries]).encode()


def decode_checkpoint(
    path: str, data: bytes, parse: Callable[[str], T], advice: str, *, newest: int = _VERSION
) -> list[T]:
    """Decode the entries of a checkpoint file, of any version up to `newest`.

    Raises CorruptLogError with the byte at which the file is invalid, and `advice`.
    """

    def damaged(line_number: int, reason: str) -> CorruptLogError:
        position = sum(len(line) + 1 for line in data.split(b"\n")[: line_number - 1])
        return CorruptLogError(path, min(position, len(data)), None, f"line {line_number}: {reason}", advice)

    lines = data.split(b"\n")
    if lines[-1] != b"":
        raise damaged(len(lines), "the last line is not whole")
    lines.pop()
    if len(lines) < 2:
        raise damaged(1, "the version and the number of entries are missing")
    try:
        version, count = int(lines[0]), int(lines[1])
    except ValueError:
        raise damaged(1, "the version and the number of entries are not numbers") from None
    if not _VERSION <= version <= newest:
        raise damaged(1, f"version {version}, known is {newest}")
    entries: list[T] = []
    for number, line in enumerate(lines[2:], 3):
        try:
            entries.append(parse(line.decode()))
        except ValueError:
            raise damaged(number, f"{line[:80]!r} is not an entry") from None
    if len(entries) != count:
        raise damaged(2, f"{count} entries announced, {len(entries)} found")
    return entries


def encode_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    """Encode an offset checkpoint: topic, partition, offset."""
    return encode_checkpoint(f"{tp.topic} {tp.partition} {offsets[tp]}" for tp in sorted(offsets))


def decode_offsets(path: str, data: bytes) -> dict[TopicPartition, int]:
    """Decode offsets that `encode_offsets` encoded. Raises CorruptLogError."""

    def parse(line: str) -> tuple[TopicPartition, int]:
        topic, partition, offset = line.split()
        return TopicPartition(topic, int(partition)), int(offset)

    return dict(decode_checkpoint(path, data, parse, "It is built anew from its copy, or from the logs."))


class Cleaned(NamedTuple):
    """Offset up to which a log was compacted, and its topic's id: another topic of its name was not compacted."""

    topic_id: TopicId
    offset: int


def encode_cleaned(cleaned: Mapping[TopicPartition, Cleaned]) -> bytes:
    """Encode the cleaner's checkpoint: topic, partition, offset, topic id. Kafka's has no id, and version 0."""
    lines = (f"{tp.topic} {tp.partition} {one.offset} {encode_id(one.topic_id)}" for tp, one in sorted(cleaned.items()))
    return encode_checkpoint(lines, CLEANER_VERSION)


def decode_cleaned(path: str, data: bytes) -> dict[TopicPartition, Cleaned]:
    """Decode entries that `encode_cleaned` encoded. An entry without an id may be another topic's, and is left out.

    Raises CorruptLogError.
    """

    def parse(line: str) -> tuple[TopicPartition, Cleaned]:
        topic, partition, offset, *topic_id = line.split()
        known = decode_id(*topic_id) if topic_id else ZERO_UUID
        return TopicPartition(topic, int(partition)), Cleaned(known, int(offset))

    advice = "Those logs are compacted again, which takes time alone."
    entries = decode_checkpoint(path, data, parse, advice, newest=CLEANER_VERSION)
    return {tp: one for tp, one in entries if one.topic_id != ZERO_UUID}


def encode_epochs(entries: Iterable[tuple[int, int]]) -> bytes:
    """Encode a leader epoch checkpoint: epoch, start offset."""
    return encode_checkpoint(f"{epoch} {start}" for epoch, start in entries)


def decode_epochs(path: str, data: bytes) -> list[tuple[int, int]]:
    """Decode entries that `encode_epochs` encoded. Raises CorruptLogError."""

    def parse(line: str) -> tuple[int, int]:
        epoch, start = line.split()
        return int(epoch), int(start)

    return decode_checkpoint(path, data, parse, "It is rebuilt from the batches of the log.")


def encode_checked(lines: Iterable[str]) -> bytes:
    """Encode a checkpoint that only this product reads: its last entry is a checksum of the others."""
    entries = list(lines)
    return encode_checkpoint([*entries, f"{_CHECKSUM} {_checksum_of(entries)}"])


def decode_checked(path: str, data: bytes, parse: Callable[[str], T], advice: str) -> list[T]:
    """Decode entries of `encode_checked`, or of an older build's file without a checksum. Raises CorruptLogError."""
    entries = decode_checkpoint(path, data, str, advice)
    name, _, checksum = entries[-1].partition(" ") if entries else ("", "", "")
    if name == _CHECKSUM:
        if checksum != str(_checksum_of(entries[:-1])):  # rule B31/findings-are-believed
            raise CorruptLogError(path, 0, None, "its checksum does not hold", advice)
        entries.pop()
    return decode_checkpoint(path, encode_checkpoint(entries), parse, advice)


def copy_of(path: str) -> str:
    """Return the path of the copy that `write_twice` writes."""
    return f"{path}-copy"


def write_twice(disk: Disk, path: str, lines: Iterable[str]) -> None:
    """Replace a file of `encode_checked` and its copy, so that a crash leaves the old content or the new in each.

    Raises DiskError; DiskFull: neither has changed.
    """
    data = encode_checked(lines)
    both = (path, copy_of(path))  # rule B31/what-only-we-read-stands-once
    write_synced_now(disk, {f"{one}.tmp": data for one in both})
    for one in both:
        disk.rename(f"{one}.tmp", one)
    disk.sync_dir(path.rpartition("/")[0])


def read_twice(disk: Disk, path: str, parse: Callable[[str], T], advice: str) -> list[list[T]]:
    """Read what `write_twice` wrote: the entries of the file and of its copy, if it exists and is intact. They differ
    if one of them is older. An older build knows nothing of the copy, and writes no checksum.

    Raises CorruptLogError if one of them is damaged and there is no other. Raises DiskError.
    """
    found: list[list[T]] = []
    errors: list[CorruptLogError] = []
    for one in (path, copy_of(path)):
        try:
            if disk.exists(one):
                found.append(decode_checked(one, read_file(disk, one), parse, advice))
        except CorruptLogError as error:
            errors.append(error)
    if errors and not found:
        raise errors[0]
    for damage in errors:
        mark("checkpoint-damaged")
        what = "one of a file and its copy is damaged: the other one counts"
        log.warning(what, file=damage.path, reason=damage.reason)
    if len(found) > 1 and found[0] != found[1]:
        mark("checkpoints-differ")
        log.warning("a file and its copy differ: one of them is an older one", file=path)
    return found


def _checksum_of(entries: Iterable[str]) -> int:
    return crc32c("\n".join(entries).encode())


# ---------------------------------------------------------------------- java.util.Properties, as far as Kafka uses it


def encode_properties(values: Mapping[str, str]) -> bytes:
    """Encode properties: key=value, one a line."""
    return "".join(f"{key}={value}\n" for key, value in values.items()).encode()


def decode_properties(data: bytes) -> dict[str, str]:
    """Decode properties; comments and blank lines are skipped, Java's escapes of colons are undone."""
    values: dict[str, str] = {}
    for line in data.decode("utf-8", "replace").splitlines():
        text = line.strip()
        if not text or text[0] in "#!":
            continue
        key, separator, value = text.partition("=")
        if not separator:
            key, _, value = text.partition(":")
        values[key.strip()] = value.strip().replace("\\:", ":").replace("\\=", "=")
    return values


def with_checksum(data: bytes) -> bytes:
    """Append the checksum of properties in a comment, which other programs skip."""
    return b"%s#%s=%d\n" % (data, _CHECKSUM.encode(), crc32c(data))


def check_checksum(data: bytes) -> None:
    """Check the checksum of `with_checksum`. Raises ValueError if it is wrong. An older build writes none."""
    lines = data.splitlines(keepends=True)
    body = b"".join(line for line in lines if line.strip() and not line.startswith(b"#"))  # comments say nothing
    said = [line for line in lines if line.startswith(b"#%s=" % _CHECKSUM.encode())]
    if said and said != [with_checksum(body)[len(body) :]]:  # rule B31/identity-is-believed
        raise ValueError("its checksum does not hold")


@dataclass(frozen=True, slots=True)
class MetaProperties:
    """Content of `meta.properties`: the identity of a directory."""

    cluster_id: str
    node_id: NodeId
    directory_id: UUID

    def encode(self) -> bytes:
        """Encode version 1 of the file."""
        values = {
            "version": "1",
            "cluster.id": self.cluster_id,
            "node.id": str(self.node_id),
            "directory.id": encode_id(self.directory_id),
        }
        return with_checksum(encode_properties(values))

    @classmethod
    def decode(cls, path: str, data: bytes) -> MetaProperties:
        """Decode the file. Raises CorruptLogError if it is damaged."""
        values = decode_properties(data)
        try:
            if values["version"] != "1":
                raise ValueError(f"version {values['version']}, known is 1")
            found = cls(values["cluster.id"], NodeId(int(values["node.id"])), decode_id(values["directory.id"]))
            check_checksum(data)
            return found
        except KeyError as error:
            reason = f"{error.args[0]} is missing"
        except ValueError as error:
            reason = str(error)
        advice = (
            "Restore the file from a copy, or take its last line away if you have changed it by hand; if the directory "
            "holds nothing of worth, empty it and format it again."
        )
        raise CorruptLogError(path, 0, None, reason, advice)


def encode_partition_metadata(topic_id: TopicId) -> bytes:
    """Encode `partition.metadata`: the id of the topic that a partition's directory belongs to."""
    return with_checksum(f"version: {_VERSION}\ntopic_id: {encode_id(topic_id)}\n".encode())


def decode_partition_metadata(path: str, data: bytes) -> TopicId:
    """Decode partition.metadata. Raises CorruptLogError."""
    values = decode_properties(data)
    try:
        if values["version"] != str(_VERSION):
            raise ValueError(f"version {values['version']}, known is {_VERSION}")
        topic_id = decode_id(values["topic_id"])
        check_checksum(data)
        return topic_id
    except KeyError as error:
        reason = f"{error.args[0]} is missing"
    except ValueError as error:
        reason = str(error)
    advice = (
        "Write the topic's id into it (another replica has it), or move the partition's directory away to refetch it."
    )
    raise CorruptLogError(path, 0, None, reason, advice)


# ---------------------------------------------------------------------- the clean-shutdown marker


def encode_clean_shutdown(broker_epoch: int) -> bytes:
    """Encode `.kafka_cleanshutdown`: the JSON of Kafka's CleanShutdownFileHandler; -1 if the node is no broker."""
    return json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":")).encode()


def read_clean_shutdown(disk: Disk, path: str) -> int | None:
    """Return the broker epoch of the last life if it ended cleanly, else None.

    A marker that does not parse proves nothing, so it counts as an unclean stop: that costs a recovery and no data.
    """
    if not disk.exists(path):
        return None
    try:
        content = read_json(read_file(disk, path))
        epoch = content["brokerEpoch"]
    except (ValueError, KeyError, TypeError):
        return None
    return epoch if isinstance(epoch, int) else None
