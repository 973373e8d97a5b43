"""Mutants of what a log is taken for after a stop (rule E5, schedule 20)."""

from __future__ import annotations

from lab.mutants.mutant import Mutant, always, dropped, instead, never, one_change, part, removed, value

_BEGUN = "tests/log/test_begun_anew.py"
_FINDINGS = "tests/log/test_findings.py"

_RECOVERY = "tests/log/test_recovery.py"
_METADATA_LOG = "tests/controller/quorum/test_metadata_log_cut.py"
_POWER_CUT = "tests/log/test_power_cut.py"

TABLE: tuple[Mutant, ...] = (
    one_change(
        "rotten-epochs-are-believed",
        "schedule 70: an epoch checkpoint that contradicts the batches is built anew",
        part("not self._epochs_known", "True"),
        f"{_RECOVERY}::test_70_a_bit_rots_in_the_epoch_checkpoint",
    ),
    one_change(
        "rotten-epochs-are-scanned-by",
        "schedule 70: no intact log is refused for a rotten epoch checkpoint",
        part(
            "first and self._epochs_contradict(self.segments[:first], expected)",
            "False and self._epochs_contradict(self.segments[:first], expected)",
        ),
        f"{_RECOVERY}::test_70_a_bit_rots_in_the_epoch_checkpoint",
    ),
    one_change(
        "damage-in-the-middle-is-cut",
        "E5: damage in the middle of once-durable data is refused",
        never(),
        f"{_RECOVERY}::test_a_flip_of_every_byte",
    ),
    one_change(
        "torn-tail-is-refused",
        "E5: a torn tail is cut",
        value("'torn'"),
        f"{_RECOVERY}::test_cut_at_every_byte",
    ),
    one_change(
        "durable-once-is-cut",
        "E5: nothing below the recovery point is cut",
        never(),
        f"{_RECOVERY}::test_a_hole_after_a_power_cut",
    ),
    one_change(
        "lost-tail-is-accepted",
        "E5: a log that ends below its recovery point is refused",
        never(),
        f"{_RECOVERY}::test_a_tail_lost_below_the_recovery_point",
    ),
    one_change(
        "damage-after-a-clean-stop-is-cut",
        "E5: what a clean stop left was durable to the last byte",
        never(),
        f"{_RECOVERY}::test_damage_after_a_clean_stop",
    ),
    one_change(
        "killed-is-like-a-power-cut",
        "E5: after a mere kill every completed write is there: a hole is damage",
        never(),
        f"{_RECOVERY}::test_a_flip_of_every_byte",
    ),
    one_change(
        "power-cut-is-like-a-kill",
        "E5: a power cut may lose unsynced writes in any order",
        always(),
        f"{_RECOVERY}::test_a_hole_after_a_power_cut",
    ),
    one_change(
        "later-segments-are-not-looked-at",
        "E5: a torn end of a segment that is not the last is no torn tail",
        never(),
        f"{_RECOVERY}::test_damage_in_an_earlier_segment",
    ),
    one_change(
        "recovery-believes-every-byte",
        "E5: recovery judges by the CRC",
        removed(),
        f"{_RECOVERY}::test_a_flip_of_every_byte",
    ),
    one_change(
        "recovery-skips-offsets",
        "E5: recovery judges by the order of offsets",
        never(),
        f"{_RECOVERY}::test_a_flip_of_every_byte",
    ),
    one_change(
        "recovery-takes-older-epochs",
        "E5: recovery judges by the order of epochs",
        never(),
        f"{_RECOVERY}::test_epochs_that_go_back_end_a_log",
    ),
    one_change(
        "missing-segment-is-accepted",
        "E5: segments follow on each other",
        never(),
        f"{_RECOVERY}::test_a_missing_segment",
    ),
    Mutant(
        "stale-epochs-are-believed",  # the check of the whole checkpoint against the log would notice most of it, too
        "B8: the epochs of what is scanned are those of its batches",
        (
            removed(),
            part("not self._epochs_known", "True"),
        ),
        (f"{_RECOVERY}::test_a_stale_epoch_checkpoint_is_put_right",),
    ),
    one_change(
        "damaged-epoch-checkpoint-is-empty",
        "schedule 20: epochs that cannot be read are rebuilt from the batches (KAFKA-16541)",
        never(),
        f"{_RECOVERY}::test_epochs_are_rebuilt_from_the_batches",
    ),
    one_change(
        "recovered-is-not-synced",
        "E5: what recovery keeps is made durable before it counts",
        removed(),
        f"{_POWER_CUT}::test_lives_of_a_log_directory",
    ),
    one_change(
        "every-stop-was-clean",
        "E5: without its marker a log is scanned",
        value("True"),
        f"{_POWER_CUT}::test_lives_of_a_log_directory",
    ),
    one_change(
        "inherits-checkpoints",
        "E5: a partition made anew inherits no checkpoint",
        never(),
        "tests/log/test_findings.py::test_what_was_lost_and_is_made_anew_is_not_missed_again",
    ),
    one_change(
        "start-is-cut-in-any-order",
        "E5: the metadata log's start goes segment by segment, each durably",
        removed(),
        f"{_METADATA_LOG}::test_a_start_that_is_cut_leaves_no_gap_whenever_the_power_fails",
    ),
    one_change(
        "recovery-point-is-lowered-only-with-room",
        "E5: a full disk keeps nobody from promising less",
        instead("raise\n..."),
        f"{_METADATA_LOG}::test_a_full_disk_lets_the_log_be_cut",
    ),
    one_change(
        "first-segment-may-vanish",
        "schedule 48: no log begins behind its log start, if anything above that is promised",
        never(),
        f"{_FINDINGS}::test_a_first_segment_that_is_missing_is_refused",
    ),
    one_change(
        "first-segment-may-vanish-before-a-kill",
        "schedule 48: a recovery point proves that there was a first segment, however the node ended",
        dropped("self.durable_end > self.log_start_offset"),
        f"{_FINDINGS}::test_a_first_segment_that_is_missing_is_refused",
    ),
    one_change(
        "new-log-start-is-not-written",
        "schedule 48: where a log begins anew is durable before anything in it is promised",
        removed(),
        f"{_BEGUN}::test_a_log_that_begins_anew_opens_whenever_it_crashed",
    ),
    one_change(
        "log-start-is-lowered-first",
        "schedule 48: what is promised of a log goes before its log start",
        part("(by_name, starts)", "(starts, by_name)"),
        f"{_BEGUN}::test_a_log_that_begins_anew_opens_whenever_it_crashed",
    ),
)
