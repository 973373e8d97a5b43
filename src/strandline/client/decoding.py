"""From fetched bytes to records: batch by batch, when they are asked for."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator

from strandline.client.types import ConsumerRecord
from strandline.log.batch import HEADER_SIZE, OVERHEAD, BatchHeader, parse_header, verify_crc
from strandline.log.records import decode_records, decode_records_as
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import TopicPartition

_CONTROL_KEY = struct.Struct(">hh")
_ABORT = 0

_SLOTS = (2, 3, 5, 6, 7)
"""Where a ConsumerRecord has offset, timestamp, key, value and headers."""


def whole_batches(data: memoryview) -> Iterator[tuple[BatchHeader, memoryview]]:
    """The whole batches of a fetch answer; brokers may cut the last one off.

    Raises:
        KafkaError: CORRUPT_MESSAGE.
    """
    pos = 0
    size = len(data)
    while size - pos >= HEADER_SIZE:
        header = parse_header(data, pos)
        end = pos + header.batch_length + OVERHEAD
        if end > size:
            return
        yield header, data[pos:end]
        pos = end


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
        figures = {**error.figures, "partition": str(partition), "base_offset": header.base_offset}
        raise KafkaError(error.code, error.message, **figures) from error
    if header.base_offset >= start:
        return records
    return [record for record in records if record.offset >= start]
