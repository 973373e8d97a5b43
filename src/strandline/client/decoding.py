"""From fetched bytes to records: batch by batch, when they are asked for."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator

from strandline.client.types import ConsumerRecord
from strandline.log.batch import HEADER_SIZE, OVERHEAD, BatchHeader, parse_header, verify_crc
from strandline.log.columns import RecordColumns
from strandline.log.records import decode_columns, decode_records, decode_records_as
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import TopicPartition

_CONTROL_KEY = struct.Struct(">hh")
_ABORT = 0

_SLOTS = (2, 3, 5, 6, 7)
"""Where a ConsumerRecord has offset, timestamp, key, value and headers."""


def whole_batches(data: memoryview, high_watermark: int) -> Iterator[tuple[BatchHeader, memoryview]]:
    """The whole batches of a fetch answer; brokers may cut the last one off.

    A batch's CRC does not cover its base offset, which a leader writes without touching the rest: what rots there shows
    in the order alone. Of two batches in the wrong order either may be the damaged one, so the first is kept back.

    Raises:
        KafkaError: CORRUPT_MESSAGE: no batch, or offsets that go back or reach the answer's high watermark; once the
            batches before have been given.
    """
    pos = 0
    size = len(data)
    before: tuple[BatchHeader, memoryview] | None = None
    while size - pos >= HEADER_SIZE:
        header = parse_header(data, pos)
        end = pos + header.batch_length + OVERHEAD
        if end > size:
            break
        if before is not None:
            if header.base_offset <= before[0].last_offset:
                raise KafkaError(
                    ErrorCode.CORRUPT_MESSAGE,
                    "offsets go back",
                    last_offset=before[0].last_offset,
                    following=header.base_offset,
                )
            yield before
        if header.last_offset >= high_watermark:
            raise KafkaError(
                ErrorCode.CORRUPT_MESSAGE,
                "a batch of offsets that are not committed yet",
                last_offset=header.last_offset,
                high_watermark=high_watermark,
            )
        before = header, data[pos:end]
        pos = end
    if before is not None:
        yield before


def good_batches(data: memoryview, high_watermark: int) -> list[tuple[BatchHeader, memoryview]]:
    """The whole batches of a fetch answer, as far as they are good: what follows is met as the first of another answer.

    Raises:
        KafkaError: CORRUPT_MESSAGE, see `whole_batches`, where there is no good one.
    """
    good: list[tuple[BatchHeader, memoryview]] = []
    try:
        for found in whole_batches(data, high_watermark):
            good.append(found)
    except KafkaError:
        if not good:
            raise
    return good


class AbortedTransactions:
    """Tells which transactional batches of one fetch answer were aborted (KIP-98).

    The answer lists (producer id, first offset); a transaction's records are dead from there to its abort marker.
    """

    def __init__(self, aborted: tuple[tuple[int, int], ...]) -> None:
        self._coming = deque(sorted(aborted, key=lambda item: item[1]))
        self._dead: set[int] = set()

    def hides(self, header: BatchHeader, batch: memoryview) -> bool:
        """Whether a batch is kept from the reader: of an aborted transaction, or a marker. Call in order of offsets."""
        while self._coming and self._coming[0][1] <= header.last_offset:
            self._dead.add(self._coming.popleft()[0])
        if header.is_control:
            if header.producer_id in self._dead and _marker_type(batch) == _ABORT:
                self._dead.discard(header.producer_id)
            return True
        return header.is_transactional and header.producer_id in self._dead


def _marker_type(batch: memoryview) -> int:
    records = decode_records(batch)
    key = records[0].key if records else None
    if key is None or len(key) < _CONTROL_KEY.size:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "a control batch without a marker")
    kind: int = _CONTROL_KEY.unpack_from(key)[1]
    return kind


def consumer_records(
    partition: TopicPartition, header: BatchHeader, batch: memoryview, start: int, check_crcs: bool
) -> list[ConsumerRecord]:
    """The records of one batch from offset `start` on.

    Raises:
        KafkaError: CORRUPT_MESSAGE or INVALID_RECORD, with partition and offset.
    """
    try:
        if check_crcs:
            verify_crc(batch)
        template = (*partition, None, None, header.timestamp_type, None, None, None, header.leader_epoch)
        records = decode_records_as(ConsumerRecord, template, _SLOTS, header, batch)
    except KafkaError as error:
        raise located(error, partition, header) from error
    if header.base_offset >= start:
        return records
    return [record for record in records if record.offset >= start]


def add_columns(
    columns: RecordColumns,
    partition: TopicPartition,
    header: BatchHeader,
    batch: memoryview,
    start: int,
    *,
    check_crcs: bool,
) -> int:
    """Append the records of one batch from offset `start` on; how many they are.

    Raises as `consumer_records`; the columns are then as they were.
    """
    try:
        if check_crcs:
            verify_crc(batch)
        return decode_columns(columns, header, batch, start, header.next_offset, with_headers=True)
    except KafkaError as error:
        raise located(error, partition, header) from error


def located(error: KafkaError, partition: TopicPartition, header: BatchHeader) -> KafkaError:
    """The error with the place of the batch that it is about."""
    figures = {**error.figures, "partition": str(partition), "base_offset": header.base_offset}
    return KafkaError(error.code, error.message, **figures)
