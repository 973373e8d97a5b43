"""Batches that were refused before they were written, which the producer may send again (schedule 52)."""

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
    """What an idempotent producer is answered for batches behind one with this refusal, until something comes under the
    same sequence: that they were not written, and may be sent again. None: nothing will come in its place.

    Those behind one that was too large are not too large: by that answer they would be split, or given up.
    """
    if code in _IN_PARTS_AGAIN:  # rule C1/out-of-order-behind-what-is-too-large
        return ErrorCode.NOT_ENOUGH_REPLICAS
    return code if code in _SAME_AGAIN else None


def note_refusal(plog: PartitionLog, batches: memoryview, code: ErrorCode, now_ms: float) -> None:
    """Note that a log refused these batches: what the same producer has sent behind them is refused too, if something
    comes in their place."""
    behind, header = _behind(code), _producers_header(batches)
    if behind is not None and header is not None:
        plog.producers.refused(header.producer_id, _refusal(header, behind, now_ms))


class EarlyRefusals:
    """Refusals from before there was a log to keep them with, for this broker's metadata were behind the client's: by
    topic (as the client named it), partition and producer id."""

    def __init__(self) -> None:
        self._refusals: Refusals[tuple[str | TopicId, int, int]] = Refusals()

    def __len__(self) -> int:
        return len(self._refusals)

    def note(self, topic: str | TopicId, index: int, batches: memoryview, code: ErrorCode, now_ms: float) -> None:
        """Batches were refused; kept if something comes in their place."""
        behind, header = _behind(code), _producers_header(batches)
        if behind is not None and header is not None:
            self._refusals.add((topic, index, header.producer_id), _refusal(header, behind, now_ms))

    def recall(
        self, tp: TopicPartition, topic_id: TopicId, plog: PartitionLog, batches: memoryview, now_ms: float
    ) -> None:
        """Give a log, now that there is one, what was refused before of the producer of these batches."""
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
    """The header of an idempotent producer's batch."""
    try:
        header = parse_header(batches)
    except KafkaError:
        return None
    return header if header.producer_id >= 0 and header.base_sequence >= 0 else None
