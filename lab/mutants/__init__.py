"""Rules of the production code taken out on purpose: each mutant must be noticed, or the tests have a hole.

`python -m lab.mutants` holds every one against what is to kill it, `python -m lab.sim --break NAME` runs seeds with
one of them, `pytest --mutant NAME` tests. Nothing of the cluster is imported before a mutant is applied.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lab.mutants import (
    acls,
    belief,
    clauses,
    clients,
    compaction,
    controller,
    deletions,
    directories,
    disks,
    elections,
    features,
    groups,
    idempotence,
    inspection,
    internal_rpc,
    kept,
    log,
    log_recovery,
    log_transactions,
    loop_time,
    moves,
    quorum,
    quorum_guard,
    quorum_log,
    quorum_state,
    quotas,
    reassignment,
    recovery,
    replication,
    replication_isr,
    replication_reads,
    request_times,
    rooms,
    rot,
    sasl,
    security,
    sessions,
    spark,
    stable_offsets,
    steps,
    storage,
    telemetry,
    tier_producers,
    tier_restore,
    tier_store,
    tiering,
    tiers,
    transaction_brokers,
    transactions,
    unproven,
    users,
    voters,
)
from lab.mutants.mutant import Mutant
from lab.mutants.patching import applied
from lab.mutants.places import StaleMutant

__all__ = ["MUTANTS", "Mutant", "StaleMutant", "without"]

MUTANTS: dict[str, Mutant] = {
    mutant.name: mutant
    for table in (
        quorum.TABLE,
        directories.TABLE,
        quorum_log.TABLE,
        quorum_state.TABLE,
        quorum_guard.TABLE,
        voters.TABLE,
        controller.TABLE,
        sessions.TABLE,
        elections.TABLE,
        features.TABLE,
        replication.TABLE,
        replication_isr.TABLE,
        replication_reads.TABLE,
        request_times.TABLE,
        stable_offsets.TABLE,
        deletions.TABLE,
        log.TABLE,
        log_recovery.TABLE,
        log_transactions.TABLE,
        moves.TABLE,
        belief.TABLE,
        reassignment.TABLE,
        recovery.TABLE,
        unproven.TABLE,
        users.TABLE,
        rooms.TABLE,
        rot.TABLE,
        security.TABLE,
        sasl.TABLE,
        acls.TABLE,
        quotas.TABLE,
        loop_time.TABLE,
        steps.TABLE,
        kept.TABLE,
        telemetry.TABLE,
        internal_rpc.TABLE,
        idempotence.TABLE,
        transactions.TABLE,
        groups.TABLE,
        transaction_brokers.TABLE,
        clients.TABLE,
        spark.TABLE,
        storage.TABLE,
        disks.TABLE,
        compaction.TABLE,
        tiers.TABLE,
        tiering.TABLE,
        tier_store.TABLE,
        tier_producers.TABLE,
        tier_restore.TABLE,
        inspection.TABLE,
        clauses.TABLE,
    )
    for mutant in table
}
"""Mutants by name, in the order of the rules."""


@contextmanager
def without(name: str | None) -> Iterator[None]:
    """Run without the rule that the mutant called `name` takes out (None: with every rule).

    Raises:
        KeyError: there is no such mutant.
        StaleMutant: a place that it changes is not marked, or has another shape.
    """
    with applied(None if name is None else MUTANTS[name]):
        yield
