"""Model of the transactions in the committed part of a log: which are open, how the others ended, and where the last
stable offset is (rules C6, C10). The checkers read the batches with a parser of their own.

    data of (producer, epoch)      opens a transaction, or goes on with it
    marker of (producer, epoch)    ends it: its epoch is above that of the data (KIP-890 part 2), or the same where the
                                   producer speaks the first protocol
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from struct import Struct

from strandline.chaos.checkers.batches import NotABatch, StoredBatch, StoredRecord, records
from strandline.chaos.checkers.invariant import InvariantViolated
from strandline.chaos.checkers.stored import Place, stored_headers
from strandline.chaos.sim.disk import SimDisk

_ATTRIBUTES_AT = 21
_ATTRIBUTES = Struct(">h")
_TRANSACTIONAL, _CONTROL = 0x10, 0x20
_PRODUCER_AT = 43
_PRODUCER = Struct(">qh")
_KEY = Struct(">hh")
_MARKER_VALUE = Struct(">hi")
_COMMIT = 1


class Ends:
    """Transactions of a log that may have lost any batch: the producer of each record, and what each marker said."""

    def __init__(self) -> None:
        self._writers: dict[int, int] = {}
        """Offset of a transactional record -> id of its producer."""
        self._markers: dict[int, dict[int, bool]] = {}
        """Producer id -> offset of a marker -> True for a commit, False for an abort."""

    def wrote(self, producer_id: int, offset: int) -> None:
        """Note that this producer wrote the transactional record at `offset`."""
        self._writers[offset] = producer_id

    def ended(self, producer_id: int, offset: int, *, commits: bool) -> None:
        """Note the marker at `offset`, which ends this producer's transaction."""
        self._markers.setdefault(producer_id, {})[offset] = commits

    def learn(self, other: Ends | None) -> None:
        """Add what another replica's log showed; None adds nothing."""
        if other is None:
            return
        self._writers |= other._writers
        for producer_id, markers in other._markers.items():
            self._markers.setdefault(producer_id, {}).update(markers)

    def aborted(self, offset: int) -> bool:
        """True if the record at `offset` belongs to an aborted transaction."""
        producer_id = self._writers.get(offset)
        if producer_id is None:
            return False
        behind = [at for at in self._markers.get(producer_id, ()) if at > offset]
        return bool(behind) and not self._markers[producer_id][min(behind)]


def ends_of(ends: Ends, inside: Sequence[StoredRecord], content: bytes) -> bool:
    """Note the records of one batch in `ends`. Returns True if the batch is a marker."""
    (attributes,) = _ATTRIBUTES.unpack_from(content, _ATTRIBUTES_AT)
    producer_id, _ = _PRODUCER.unpack_from(content, _PRODUCER_AT)
    if attributes & _CONTROL:
        for one in inside:
            ends.ended(producer_id, one.offset, commits=_KEY.unpack_from(one.key or b"")[1] == _COMMIT)
        return True
    if attributes & _TRANSACTIONAL:
        for one in inside:
            ends.wrote(producer_id, one.offset)
    return False


@dataclass(slots=True)
class _Open:
    """A transaction whose marker is not committed yet."""

    epoch: int
    first_offset: int


class LogTransactions:
    """Transactions in the committed part of one log, from its beginning.

    Attributes:
        next_offset: offset after the last batch that was read.
        stable: high watermark (the end of a batch) -> last stable offset of a replica with that high watermark.
        visible: offset -> value of the records that a read_committed consumer sees.
        aborted: records that such a consumer must never see.
        repeated: number of markers that ended no transaction, because they repeat an earlier marker.
    """

    def __init__(self, partition: str, of_first_protocol: Container[int] = ()) -> None:
        """`of_first_protocol`: ids of producers that keep one epoch over many transactions (before KIP-890)."""
        self.partition = partition
        self._of_first_protocol = of_first_protocol
        self.next_offset = 0
        self.stable = {0: 0}
        self.visible: dict[int, str] = {}
        self.aborted: dict[int, str] = {}
        self.repeated = 0
        self._open: dict[int, _Open] = {}
        self._records: dict[int, list[tuple[int, str]]] = {}
        """Producer id -> (offset, value) of the records of its open transaction."""
        self._epochs: dict[int, int] = {}
        """Producer id -> the producer epoch of its last batch or marker."""
        self._coordinators: dict[int, int] = {}
        """Producer id -> the epoch of the coordinator that wrote its last marker."""

    def take(self, batch: StoredBatch, content: bytes) -> None:
        """Apply the next batch of the log. Raises InvariantViolated if it breaks the order of transactions."""
        (attributes,) = _ATTRIBUTES.unpack_from(content, _ATTRIBUTES_AT)
        producer_id, epoch = _PRODUCER.unpack_from(content, _PRODUCER_AT)
        if producer_id >= 0:
            if epoch < self._epochs.get(producer_id, -1):
                self._fail("ProducerEpochsRise", "a batch of an older epoch than the one before", batch, producer_id)
            self._epochs[producer_id] = epoch
        if attributes & _CONTROL:
            self._take_marker(batch, content, producer_id, epoch)
        else:
            self._take_data(batch, content, producer_id, epoch, bool(attributes & _TRANSACTIONAL))
        self.next_offset = batch.next_offset
        firsts = [one.first_offset for one in self._open.values()]
        self.stable[self.next_offset] = min([self.next_offset, *firsts])

    def _take_data(self, batch: StoredBatch, content: bytes, producer_id: int, epoch: int, transactional: bool) -> None:
        found = [(one.offset, (one.value or b"").decode(errors="replace")) for one in records(batch, content)]
        if not transactional:
            if producer_id in self._open:
                self._fail(
                    "PlainDataInATransaction", "a plain batch of a producer with an open one", batch, producer_id
                )
            self.visible.update(found)
            return
        known = self._open.setdefault(producer_id, _Open(epoch, batch.base_offset))
        if known.epoch != epoch:
            self._fail("OneEpochATransaction", "data of another epoch in one transaction", batch, producer_id)
        self._records.setdefault(producer_id, []).extend(found)

    def _take_marker(self, batch: StoredBatch, content: bytes, producer_id: int, epoch: int) -> None:
        (record,) = records(batch, content)
        _, kind = _KEY.unpack_from(record.key or b"")
        _, coordinator_epoch = _MARKER_VALUE.unpack_from(record.value or b"")
        if coordinator_epoch < self._coordinators.get(producer_id, -1):
            self._fail("CoordinatorEpochsRise", "the marker of an older coordinator", batch, producer_id)
        self._coordinators[producer_id] = coordinator_epoch
        ended = self._open.pop(producer_id, None)
        if ended is None:
            self.repeated += 1
            return
        if epoch < ended.epoch + (producer_id not in self._of_first_protocol):
            self._fail("OneMarkerInEffect", "a marker of the transaction before ends this one", batch, producer_id)
        (self.visible if kind == _COMMIT else self.aborted).update(self._records.pop(producer_id, ()))

    def _fail(self, name: str, message: str, batch: StoredBatch, producer_id: int) -> None:
        facts = {"partition": self.partition, "offset": batch.base_offset, "producer": producer_id}
        raise InvariantViolated(name, message, **facts, open=self._open.get(producer_id))

    @property
    def open(self) -> int:
        """Number of transactions without a marker."""
        return len(self._open)


class TransactionChecks:
    """Invariants of the transactions in the logs of a simulated run.

    - TransactionsInOrder: markers and epochs follow each other as the protocol allows.
    - LastStableOffset: each replica's last stable offset is the model's, and never goes back under one leader.
    """

    def __init__(self, topics: frozenset[str]) -> None:
        """`topics`: names of the topics that take transactional records. No record of them may be deleted."""
        self.looked = 0
        """Number of last stable offsets compared so far."""
        self.of_first_protocol: set[int] = set()
        """Ids of producers that speak the protocol from before KIP-890, noted before their first batch is in a log."""
        self._topics = topics
        self._logs: dict[str, LogTransactions] = {}
        self._highest: dict[tuple[str, int, int], int] = {}
        """(partition, leader's node id, leader epoch) -> the highest last stable offset that this leader has shown."""
        self._places: dict[tuple[int, str], Place] = {}
        """(node, directory) -> where the last batch that was read begins in that log."""

    def log(self, partition: str) -> LogTransactions:
        """Model of one partition's log."""
        return self._logs.setdefault(partition, LogTransactions(partition, self.of_first_protocol))

    def check(
        self, node: int, partition: tuple[str, int], disk: SimDisk, directory: str, *, high_watermark: int, stable: int,
        leader_epoch: int | None, merged: bool = False,
    ) -> None:  # fmt: skip
        """Check one replica. `stable` is its last stable offset; `leader_epoch` is None for a follower. `merged`: so
        many transactions have ended above its high watermark that the oldest count as one, which ends with the last.

        Raises:
            InvariantViolated: the last stable offset or the order of the transactions is wrong.
        """
        topic, number = partition
        if topic not in self._topics:
            return
        name = f"{topic}-{number}"
        log = self.log(name)
        if high_watermark > log.next_offset:
            self._read(log, node, disk, directory, high_watermark)
        expected = log.stable.get(high_watermark)
        facts = {"partition": name, "node": node, "high_watermark": high_watermark, "found": stable}
        if expected is not None:
            self.looked += 1
            # A restarted replica first knows an older high watermark than it did before it stopped. Its last stable
            # offset may lie higher than this watermark suggests, where committed markers have ended transactions.
            least = 0 if merged else expected
            if not least <= stable <= max(expected, min(high_watermark, log.stable[log.next_offset])):
                raise InvariantViolated("LastStableOffset", "it is not where it should be", **facts, expected=expected)
        if leader_epoch is not None:
            key = name, node, leader_epoch
            if stable < self._highest.get(key, 0):
                message = "it went back under one leader"
                raise InvariantViolated("LastStableOffset", message, **facts, was=self._highest[key])
            self._highest[key] = stable

    def _read(self, log: LogTransactions, node: int, disk: SimDisk, directory: str, end: int) -> None:
        place = self._places.get((node, directory))
        try:
            for batch, at in stored_headers(disk, directory, start=log.next_offset, place=place):
                if batch.next_offset > end:
                    return
                log.take(batch, at.file.read(batch.size, at.position))
                self._places[node, directory] = at
        except NotABatch:
            return  # the segment has rotted; other checks report that

    def check_ended(self) -> None:
        """Check that no transaction is open. Called after all faults have healed and the transaction timeout has
        passed. Raises InvariantViolated."""
        hanging = {name: log.open for name, log in self._logs.items() if log.open}
        if hanging:
            raise InvariantViolated("NoTransactionHangs", "transactions are open that nobody ends", open=hanging)
