"""What is checked of batches before they are written: header, size, CRC, count, and of a client's the records too."""

from __future__ import annotations

from strandline.log.batch import (
    CODEC_MASK,
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    OVERHEAD,
    TRANSACTIONAL_BIT,
    BatchHeader,
    BatchJudge,
    gap_batch,
    parse_header,
    verify_crc,
)
from strandline.log.compression import Codec
from strandline.log.config import INT64_MAX, LOG_APPEND_TIME, LogConfig
from strandline.log.records import check_records, decode_records
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError


def check_client_batches(batches: memoryview, config: LogConfig, now_ms: int) -> list[BatchHeader]:
    """The headers of a client's batches, each found fit to be written at the wall time `now_ms`.

    Raises:
        KafkaError: MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE, CORRUPT_MESSAGE, INVALID_RECORD,
            INVALID_TIMESTAMP, UNSUPPORTED_COMPRESSION_TYPE, UNSUPPORTED_FOR_MESSAGE_FORMAT or INVALID_TXN_STATE.
    """
    headers: list[BatchHeader] = []
    position = 0
    end = len(batches)
    earliest_ms, latest_ms = _timestamps(config, now_ms)
    while position < end:
        header = parse_header(batches, position)
        size = header[1] + OVERHEAD
        if size > config.max_message_bytes:
            raise KafkaError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"the batch takes {size} bytes, and max.message.bytes of the topic is {config.max_message_bytes}: "
                "raise that, or send smaller batches or records",
                size=size,
                max_message_bytes=config.max_message_bytes,
            )
        if size > end - position:
            raise KafkaError(
                ErrorCode.CORRUPT_MESSAGE, "a batch is longer than its bytes", size=size, bytes_left=end - position
            )
        if header[0] != 0:
            raise _invalid("a client's batch begins at offset 0: the leader gives the offsets", base_offset=header[0])
        batch = batches[position : position + size]  # rule E5/fields-before-crc
        # rule E5/clients-crc-is-believed
        verify_crc(batch)  # first: a bit that flipped on the way is no field that the client has written
        _check_fields(header)
        if header[8] > latest_ms or 0 <= header[7] < earliest_ms:
            raise _invalid_timestamp(header, config, now_ms)
        check_records(header, batch, config.unpacked_bytes_max)
        if config.compacted:  # rule B20/records-without-a-key
            _check_keys(header, batch, config.unpacked_bytes_max)
        headers.append(header)
        position += size
    if not headers:
        raise KafkaError(ErrorCode.INVALID_RECORD, "there is no batch to append")
    if end > config.segment_bytes:
        raise KafkaError(
            ErrorCode.RECORD_LIST_TOO_LARGE,
            f"the batches take {end} bytes, and segment.bytes of the topic is {config.segment_bytes}: raise that, or "
            "lower batch.size of the producer",
            size=end,
            segment_bytes=config.segment_bytes,
        )
    return headers


def check_replicated_batches(batches: memoryview, offset: int, epoch: int) -> list[BatchHeader]:
    """The headers of batches that a leader sent: whole, holding their CRC, following on `offset`, of epochs not below
    `epoch`. Sequences are the leader's business.

    Raises KafkaError: CORRUPT_MESSAGE, OFFSET_OUT_OF_RANGE.
    """
    judge = BatchJudge(offset, epoch)
    headers: list[BatchHeader] = []
    position = 0
    while position < len(batches):
        header, _ = judge.whole(batches, position)
        judge.follow(header)
        headers.append(header)
        position += header.size
    if not headers:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "there is no batch to append")
    return headers


def gap_from(batches: memoryview, first: BatchHeader, offset: int) -> memoryview:
    """A copy of a leader's batches whose first one, a gap around `offset`, begins there. Each replica compacts by
    itself, so that the leader's gap may begin before the end of a follower's log.

    Raises KafkaError (CORRUPT_MESSAGE) where that batch is not whole.
    """
    BatchJudge(first.base_offset).whole(batches)
    rest = gap_batch(offset, first.last_offset, first.leader_epoch)
    rest += batches[first.size :]
    return memoryview(rest)


def _timestamps(config: LogConfig, now_ms: int) -> tuple[int, int]:
    """The earliest and the latest time that a record may bear. None counts where the leader sets its own time; a batch
    is judged by its first record and its newest (records without a time, -1, always pass)."""
    if config.message_timestamp_type == LOG_APPEND_TIME:
        return 0, INT64_MAX
    return now_ms - config.timestamp_before_max_ms, now_ms + config.timestamp_after_max_ms


def _invalid_timestamp(header: BatchHeader, config: LogConfig, now_ms: int) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_TIMESTAMP,
        "the time of a record lies too far from the broker's: message.timestamp.before.max.ms and "
        "message.timestamp.after.max.ms say how far it may",
        base_timestamp=header.base_timestamp,
        max_timestamp=header.max_timestamp,
        now_ms=now_ms,
        before_max_ms=config.timestamp_before_max_ms,
        after_max_ms=config.timestamp_after_max_ms,
    )


def _check_fields(header: BatchHeader) -> None:
    attributes = header[5]
    if header[12] != header[6] + 1:
        raise _invalid("count and last offset delta disagree", count=header[12], last_offset_delta=header[6])
    if attributes & CONTROL_BIT:
        raise _invalid("clients may not write control batches")
    if attributes & DELETE_HORIZON_BIT:
        raise _invalid("clients may not say when tombstones go: compaction does")
    if attributes & CODEC_MASK > Codec.ZSTD:
        raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"compression {attributes & CODEC_MASK} is not known")
    # Without a producer id, epoch and sequence mean nothing: franz-go and aiokafka leave 0 there.
    if header[9] >= 0 and (header[10] < 0 or header[11] < 0):
        raise _invalid("a producer id without epoch or sequence", producer_epoch=header[10], base_sequence=header[11])
    if attributes & TRANSACTIONAL_BIT:
        raise KafkaError(ErrorCode.INVALID_TXN_STATE, "transactions are not served: this producer has begun none here")


def _check_keys(header: BatchHeader, batch: memoryview, unpacked_max: int) -> None:
    """Compaction goes by keys: a record without one would stay for ever, or go at once (KIP-467 for the answer)."""
    for record in decode_records(batch, unpacked_max):
        if record.key is None:
            raise _invalid("a compacted topic takes no record without a key", record=record.offset, count=header.count)


def _invalid(message: str, **figures: int) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_RECORD, message, **figures)
