"""Mutants of correctness rule A: the quorum."""

from __future__ import annotations

from strandline.chaos.mutants.mutant import Mutant, Patch

TABLE: tuple[Mutant, ...] = (
    Mutant(
        "vote-not-durable",
        "A1: epochs, votes and leaders are durable before anyone hears of them",
        (
            Patch(
                "controller.quorum.state_file:StateFile.write",
                "write_file_durably(self._disk, self._path, _encode(state))",
                "pass",
            ),
        ),
        ("seed:quorum:0",),
    ),
    Mutant(
        "count-before-sync",
        "A9: the own end counts only once synced, in the quorum and in partitions",
        (
            Patch(
                "controller.raft.log_summary:LogSummary.append",
                "self.end_offset = batch.next_offset",
                "self.end_offset = self.durable_offset = batch.next_offset",
            ),
            Patch(
                "replica.core.leader:LeaderCore.__init__",
                "self._sync_before_ack = sync_before_ack",
                "self._sync_before_ack = False",
            ),
        ),
        ("seed:cluster:16",),
    ),
    Mutant(
        "isr-instead-of-maximal",
        "B: the high watermark waits for the maximal ISR",
        (
            Patch(
                "replica.core.leader:LeaderCore._set_maximal",
                "self.maximal_isr = maximal_isr",
                "self.maximal_isr = maximal_isr = self.isr",
            ),
        ),
        ("seed:cluster:5",),
    ),
)
