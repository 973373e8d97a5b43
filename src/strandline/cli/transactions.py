"""`strandline transaction`: transactional ids and their transactions, those that hang, and the end of one by hand."""

from __future__ import annotations

from typing import Any

import click

from strandline.cli.common import (
    Target,
    admin_for,
    output_option,
    plural,
    print_json,
    print_table,
    shown_time,
    target_options,
)
from strandline.cli.name_completion import transactional_ids
from strandline.cli.screen import echo
from strandline.client.types import TransactionDescription
from strandline.proto.system import SystemClock

STATES = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort")

OPEN = ("Ongoing", "PrepareCommit", "PrepareAbort")


@click.group()
def transaction() -> None:
    """List and describe transactions, find those that hang, abort one."""


@transaction.command("list")
@click.option("-s", "--state", "states", type=click.Choice(STATES), multiple=True, help="In this state; repeatable.")
@click.option("--producer-id", "producer_ids", type=click.IntRange(0), multiple=True, help="Of this one; repeatable.")
@click.option("--longer-than", "longer_than_ms", type=click.IntRange(0), metavar="MS", help="Begun longer ago.")
@click.option("--pattern", metavar="REGEX", help="Ids that match this as a whole (RE2).")
@output_option
@target_options
def list_transactions(
    *,
    states: tuple[str, ...],
    producer_ids: tuple[int, ...],
    longer_than_ms: int | None,
    pattern: str | None,
    output: str,
    **where: Any,
) -> None:
    """List the transactional ids: producer, state, and the broker that coordinates each.

    \b
    strandline transaction list
    strandline transaction list --state Ongoing --longer-than 60000
    strandline transaction list --output json | jq -r '.[].transactional_id'
    """
    with admin_for(Target(**where)) as admin:
        found = admin.list_transactions(
            states=states, producer_ids=producer_ids, longer_than_ms=longer_than_ms, pattern=pattern
        )
    if output == "json":
        print_json([one._asdict() for one in found])
    elif not found:
        echo("no transactional id is so" if states or producer_ids or longer_than_ms or pattern else "none yet")
    else:
        columns = ("transactional id", "producer id", "state", "coordinator")
        print_table(columns, [(one.transactional_id, one.producer_id, one.state, one.coordinator) for one in found])


@transaction.command("describe")
@click.argument("names", nargs=-1, required=True, metavar="TRANSACTIONAL_ID...", shell_complete=transactional_ids)
@output_option
@target_options
def describe(names: tuple[str, ...], output: str, **where: Any) -> None:
    """Show what the coordinator knows: state, producer, timeout, since when it is open, and its partitions.

    \b
    strandline transaction describe payments
    strandline transaction describe payments --output json
    """
    with admin_for(Target(**where)) as admin:
        found = list(admin.describe_transactions(names).values())
    now_ms = SystemClock().wall_ms()
    if output == "json":
        print_json([_document(one, now_ms) for one in found])
        return
    for one in found:
        echo(_title(one, now_ms))
        if one.partitions:
            print_table(("topic", "partition"), one.partitions)


def _open_ms(one: TransactionDescription, now_ms: int) -> int | None:
    """How long its transaction is open, or being ended; None: it has none."""
    is_over = one.state not in OPEN or one.started_ms is None
    return None if is_over else max(now_ms - (one.started_ms or 0), 0)


def _document(one: TransactionDescription, now_ms: int) -> dict[str, Any]:
    return {
        "transactional_id": one.transactional_id,
        "coordinator": one.coordinator.node_id,
        "state": one.state,
        "producer_id": one.producer_id,
        "producer_epoch": one.producer_epoch,
        "timeout_ms": one.timeout_ms,
        "started_ms": one.started_ms,
        "open_ms": _open_ms(one, now_ms),
        "partitions": [[item.topic, item.partition] for item in one.partitions],
    }


def _title(one: TransactionDescription, now_ms: int) -> str:
    words = f"{one.transactional_id}: {one.state}, producer {one.producer_id} of epoch {one.producer_epoch}"
    words += f", coordinator {one.coordinator.node_id}, timeout {one.timeout_ms:,} ms"
    open_ms = _open_ms(one, now_ms)
    if open_ms is not None:
        words += f"; open since {shown_time(now_ms - open_ms)}, for {open_ms // 1000:,} s"
    return words + (f", {plural(len(one.partitions), 'partition')}" if one.partitions else "")
