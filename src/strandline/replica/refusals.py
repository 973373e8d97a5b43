"""Batches that were refused before they were written, and that the producer may send again (schedule 52)."""

from __future__ import annotations

from strandline.log.batch import BatchHeader, parse_header
from strandline.log.partition_log import PartitionLog
from strandline.log.producer_state import Refusal, Refusals
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import TopicId, TopicPartition
from strandline.proto.marks import mark

_SAME_AGAIN = (
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
)
_IN_PARTS_AGAIN = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE)


def _behind(code: ErrorCode) -> ErrorCode | None:
    """Return the error for an idempotent producer's later batches, until a batch with the refused sequence arrives:
    they were not written, and may be sent again. None: no such batch will come.

    Batches behind one that was too large get another error than it: for its error they would be split, or given up.
    """
    if code in _IN_PARTS_AGAIN:  # rule C1/out-of-order-behind-what-is-too-large
        return ErrorCode.NOT_ENOUGH_REPLICAS
    return code if code in _SAME_AGAIN else None


def note_refusal(plog: PartitionLog, batches: memoryview, code: ErrorCode, now_ms: float) -> None:
    """Note that a log refused these batches: later batches of the same producer are refused, too, if the refused ones
    may be sent again."""
    behind, header = _behind(code), _producers_header(batches)
    if behind is not None and header is not None:
        plog.producers.refused(header.producer_id, _refusal(header, behind, now_ms))


class EarlyRefusals:
    """Refusals of batches that came before the partition's log existed, because this broker's metadata were behind the
    client's. They are kept by topic (as the client named it), partition and producer id."""

    def __init__(self) -> None:
        self._refusals: Refusals[tuple[str | TopicId, int, int]] = Refusals()

    def __len__(self) -> int:
        return len(self._refusals)

    def note(self, topic: str | TopicId, index: int, batches: memoryview, code: ErrorCode, now_ms: float) -> None:
        """Keep a refusal, if its batches may be sent again."""
        behind, header = _behind(code), _producers_header(batches)
        if behind is not None and header is not None:
            self._refusals.add((topic, index, header.producer_id), _refusal(header, behind, now_ms))

    def recall(
        self, tp: TopicPartition, topic_id: TopicId, plog: PartitionLog, batches: memoryview, now_ms: float
    ) -> None:
        """Move earlier refusals of the producer of these batches to the partition's log, which exists now."""
        self._refusals.expire(now_ms)
        header = _producers_header(batches)
        if header is None:
            return
        for topic in (tp.topic, topic_id):
            refusal = self._refusals.take((topic, tp.partition, header.producer_id))
            if refusal is not None:  # rule C1/refused-before-the-log-is-forgotten
                mark("refused-before-there-was-a-log")
                plog.producers.refused(header.producer_id, refusal)


def _refusal(header: BatchHeader, code: ErrorCode, now_ms: float) -> Refusal:
    return Refusal(header.producer_epoch, header.base_sequence, code, now_ms)


def _producers_header(batches: memoryview) -> BatchHeader | None:
    """Return the header of the first batch if it is an idempotent producer's, else None."""
    try:
        header = parse_header(batches)
    except KafkaError:
        return None
    return header if header.producer_id >= 0 and header.base_sequence >= 0 else None
