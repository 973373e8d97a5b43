"""Mutants of rule B19: rot is never served."""

from __future__ import annotations

from lab.mutants.mutant import Mutant, one_change

_ROT = "tests/log/test_rot.py"

TABLE: tuple[Mutant, ...] = (
    one_change(
        "rot-is-served",
        "B19: the CRC of what was read holds",
        "log.reader:LogReader._read_batches",
        "if size == len(data) and intact_offset == next_offset:",
        "if True:",
        f"{_ROT}::test_the_last_bits_of_every_batch_count",
    ),
    one_change(
        "base-offsets-are-believed",
        "B19: a batch begins where the one before it ended",
        "log.segment:Segment._find_from",
        "elif header.base_offset != following:",
        "elif False:",
        f"{_ROT}::test_no_flipped_bit_is_served[150]",
    ),
    one_change(
        "leader-epochs-are-believed",
        "B19: a batch is of the leader epoch that the log knows",
        "log.intact:intact_end",
        "epoch, until = epochs.span_at(max(offset, log_start_offset))",
        "epoch, until = -1, epochs.span_at(max(offset, log_start_offset))[1]",
        f"{_ROT}::test_no_flipped_bit_is_served[150]",
    ),
    one_change(
        "last-piece-goes-anyway",
        "B19: the last piece of a batch goes if the whole holds",
        "log.reader:LogReader._read_part",
        "crc != header.crc",
        "False",
        f"{_ROT}::test_a_batch_in_parts_is_never_whole",
    ),
    one_change(
        "time-is-looked-up-in-rot",
        "B19: a time that is answered was written",
        "log.reader:LogReader._whole_batch",
        "if not intact_end(data, header.base_offset, log.epochs, log.log_start_offset)[0]:",
        "if False:",
        f"{_ROT}::test_no_time_is_looked_up_in_rot",
    ),
    one_change(
        "rotten-end-is-waited-for",
        "B19: a batch that says it ends beyond what is committed is looked at",
        "log.reader:LogReader._read_batches",
        "            self._whole_batch(segment, position, header, pread)\n",
        "            pass\n",
        f"{_ROT}::test_no_flipped_bit_is_served[150]",
    ),
)
