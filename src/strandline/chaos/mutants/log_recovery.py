"""Mutants of what a log is taken for after a stop (rules B, E; D-20)."""

from __future__ import annotations

from strandline.chaos.mutants.mutant import Mutant, one_change

_RECOVERY = "tests/log/test_recovery.py"
_POWER_CUT = "tests/log/test_power_cut.py"
_LOG_DIR = "tests/log/test_log_dir.py"

TABLE: tuple[Mutant, ...] = (
    one_change(
        "damage-in-the-middle-is-cut",
        "E: damage in the middle of once-durable data is refused",
        "log.recovery:_Opening._judge",
        "if reason:",
        "if False:",
        f"{_RECOVERY}::test_a_flip_of_every_byte",
    ),
    one_change(
        "torn-tail-is-refused",
        "E: a torn tail is cut",
        "log.recovery:_Opening._judge",
        'reason = ""',
        'reason = "torn"',
        f"{_RECOVERY}::test_cut_at_every_byte",
    ),
    one_change(
        "durable-once-is-cut",
        "E: nothing below the recovery point is cut",
        "log.recovery:_Opening._judge",
        "elif damage.offset < self.last_life.recovery_point:",
        "elif False:",
        f"{_RECOVERY}::test_a_hole_after_a_power_cut",
    ),
    one_change(
        "lost-tail-is-accepted",
        "E: a log that ends below its recovery point is refused",
        "log.recovery:_Opening._recover_from",
        "if expected < self.last_life.recovery_point:",
        "if False:",
        f"{_RECOVERY}::test_a_tail_lost_below_the_recovery_point",
    ),
    one_change(
        "damage-after-a-clean-stop-is-cut",
        "E: what a clean stop left was durable to the last byte",
        "log.recovery:_Opening._judge",
        "if known_durable:",
        "if False:",
        f"{_RECOVERY}::test_damage_after_a_clean_stop",
    ),
    one_change(
        "killed-is-like-a-power-cut",
        "E: after a mere kill every completed write is there: a hole is damage",
        "log.recovery:_Opening._judge",
        "elif self.last_life.same_boot:",
        "elif False:",
        f"{_RECOVERY}::test_a_flip_of_every_byte",
    ),
    one_change(
        "power-cut-is-like-a-kill",
        "E: a power cut may lose unsynced writes in any order",
        "log.recovery:_Opening._judge",
        "elif self.last_life.same_boot:",
        "else:",
        f"{_RECOVERY}::test_a_hole_after_a_power_cut",
    ),
    one_change(
        "later-segments-are-not-looked-at",
        "E: a torn end of a segment that is not the last is no torn tail",
        "log.recovery:_Opening._judge",
        "if not reason and not only_zeros(later.file, 0, later.file.size()):",
        "if False:",
        f"{_RECOVERY}::test_damage_in_an_earlier_segment",
    ),
    one_change(
        "recovery-believes-every-byte",
        "E: recovery judges by the CRC",
        "log.scan:scan_batches",
        "verify_crc(window.get(position, header.size))",
        "pass",
        f"{_RECOVERY}::test_a_flip_of_every_byte",
    ),
    one_change(
        "recovery-skips-offsets",
        "E: recovery judges by the order of offsets",
        "log.scan:scan_batches",
        "elif header.base_offset != offset:",
        "elif False:",
        f"{_RECOVERY}::test_a_flip_of_every_byte",
    ),
    one_change(
        "recovery-takes-older-epochs",
        "E: recovery judges by the order of epochs",
        "log.scan:scan_batches",
        "elif header.leader_epoch < epoch:",
        "elif False:",
        f"{_RECOVERY}::test_epochs_that_go_back_end_a_log",
    ),
    one_change(
        "missing-segment-is-accepted",
        "E: segments follow on each other",
        "log.recovery:_Opening._recover_from",
        "if segment.base_offset != expected:",
        "if False:",
        f"{_RECOVERY}::test_a_missing_segment",
    ),
    one_change(
        "stale-epochs-are-believed",
        "B: the epochs of what is scanned are those of its batches",
        "log.recovery:_Opening._recover_from",
        "self.epochs.truncate_from_end(expected)  #",
        "#",
        f"{_RECOVERY}::test_a_stale_epoch_checkpoint_is_put_right",
    ),
    one_change(
        "damaged-epoch-checkpoint-is-empty",
        "D-20: epochs that cannot be read are rebuilt from the batches (KAFKA-16541)",
        "log.recovery:_Opening.load",
        "if not epochs_known or self._first_epoch_is_late():",
        "if False:",
        f"{_RECOVERY}::test_epochs_are_rebuilt_from_the_batches",
    ),
    one_change(
        "recovered-is-not-synced",
        "E: what recovery keeps is made durable before it counts",
        "log.recovery:_Opening._cut",
        "self.touched.append(segment.file)",
        "pass",
        f"{_POWER_CUT}::test_lives_of_a_log_directory",
    ),
    one_change(
        "every-stop-was-clean",
        "E: without its marker a log is scanned",
        "log.log_dir:LogDir._load_log",
        "clean=self.clean_shutdown_broker_epoch is not None",
        "clean=True",
        f"{_POWER_CUT}::test_lives_of_a_log_directory",
    ),
    one_change(
        "inherits-checkpoints",
        "E: a partition made anew inherits no checkpoint",
        "log.log_dir:LogDir.create",
        "self._forget_checkpoints(tp)",
        "pass",
        f"{_LOG_DIR}::test_a_partition_made_anew",
    ),
)
