"""Command `strandline transaction`: lists transactional ids and hanging transactions, and aborts one."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from strandline.cli.common import (
    CommandFailed,
    CommandWrong,
    Target,
    admin_for,
    dry_run_option,
    output_option,
    plural,
    print_json,
    print_table,
    shown_time,
    target_options,
)
from strandline.cli.name_completion import topic_names, transactional_ids
from strandline.cli.screen import confirm, echo
from strandline.client.types import ProducerDescription, TransactionDescription
from strandline.cluster.node.doctor import Finding, judge_transactions
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import TopicPartition
from strandline.proto.system import SystemClock

if TYPE_CHECKING:
    from strandline.client.admin import Admin

STATES = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort")

OPEN = ("Ongoing", "PrepareCommit", "PrepareAbort")

LATE_MS = 900_000
"""Kafka's transaction.max.timeout.ms: no coordinator lets a transaction be open for longer."""

STATE_TOPIC = "__transaction_state"


class Hanging(NamedTuple):
    """A transaction that is open in a partition, and that no coordinator will end there."""

    place: TopicPartition
    producer: ProducerDescription


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
    """Milliseconds since its transaction was begun, until it has ended; None: it has none."""
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


@transaction.command("find-hanging")
@click.argument("names", nargs=-1, metavar="[TOPIC]...", shell_complete=topic_names)
@click.option(
    "--longer-than", "longer_than_ms", type=click.IntRange(0), default=LATE_MS, show_default=True, metavar="MS",
    help="Only producers that have not written for so long.",
)  # fmt: skip
@output_option
@target_options
def find_hanging(names: tuple[str, ...], longer_than_ms: int, output: str, **where: Any) -> None:
    """Find transactions that are open in a partition and that no coordinator will end there (KIP-664).

    Readers of committed records wait at such a transaction for ever. Without topics: in every topic. It needs the right
    to DESCRIBE every transactional id: one that may not be seen looks like one that is not there.

    \b
    strandline transaction find-hanging
    strandline transaction find-hanging orders --longer-than 60000 --output json
    """
    with admin_for(Target(**where)) as admin:
        oldest_ms = SystemClock().wall_ms() - longer_than_ms
        found = _hanging(admin, _open_since(admin, _led(admin, names), oldest_ms))
    if output == "json":
        print_json([_hanging_document(one) for one in found])
    elif not found:
        echo("no transaction hangs")
    else:
        columns = ("partition", "producer id", "epoch", "start offset", "last record (UTC)")
        rows = [
            (
                one.place, one.producer.producer_id, one.producer.producer_epoch,
                one.producer.transaction_start_offset, shown_time(one.producer.last_timestamp_ms).removesuffix(" UTC"),
            )
            for one in found
        ]  # fmt: skip
        print_table(columns, rows)
        first = found[0]
        echo(
            f"{plural(len(found), 'transaction')} will not end; to end one: strandline transaction abort --topic "
            f"{first.place.topic} --partition {first.place.partition} --start-offset "
            f"{first.producer.transaction_start_offset}"
        )


@transaction.command("abort")
@click.argument("names", nargs=-1, metavar="[TRANSACTIONAL_ID]...", shell_complete=transactional_ids)
@click.option("-t", "--topic", shell_complete=topic_names, help="Of one that hangs: where.")
@click.option("-p", "--partition", type=click.IntRange(0), help="Of one that hangs: where.")
@click.option("--start-offset", type=click.IntRange(0), help="Of one that hangs: its first offset there.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@dry_run_option
@output_option
@target_options
def abort(
    *,
    names: tuple[str, ...],
    topic: str | None,
    partition: int | None,
    start_offset: int | None,
    yes: bool,
    dry_run: bool,
    output: str,
    **where: Any,
) -> None:
    """Abort open transactions. It cannot be undone.

    By transactional ids: their coordinators abort what is open of them, everywhere, and their producers are fenced.
    With --topic, --partition and --start-offset: one that hangs, in this partition alone, as `find-hanging` shows it;
    refused where a coordinator knows it.

    \b
    strandline transaction abort payments --dry-run
    strandline transaction abort payments --yes
    strandline transaction abort --topic orders --partition 0 --start-offset 1042 --yes
    """
    given = (topic, partition, start_offset)
    if bool(names) == any(one is not None for one in given) or (not names and None in given):
        raise click.UsageError("say transactional ids, or all of --topic, --partition and --start-offset")
    with admin_for(Target(**where)) as admin:
        if topic is None or partition is None or start_offset is None:
            aborted = _abort_known(admin, names, yes=yes, dry_run=dry_run)
        else:
            aborted = [_abort_hanging(admin, TopicPartition(topic, partition), start_offset, yes=yes, dry_run=dry_run)]
    if output == "json":
        print_json({"aborted": aborted, "dry_run": dry_run})
        return
    for one in aborted:
        echo(f"{'would abort' if dry_run else 'aborted'} {_what(one)}")


def _abort_known(admin: Admin, names: tuple[str, ...], *, yes: bool, dry_run: bool) -> list[dict[str, Any]]:
    described = admin.describe_transactions(names)
    for one in described.values():
        if one.state in OPEN[1:]:
            raise CommandFailed(f"{one.transactional_id} is {one.state}: it is decided, and being ended by itself")
        if one.state not in OPEN:
            raise CommandFailed(f"{one.transactional_id} is {one.state}: it has no open transaction")
    aborted = [
        {
            "transactional_id": one.transactional_id,
            "producer_id": one.producer_id,
            "producer_epoch": one.producer_epoch,
            "partitions": [[place.topic, place.partition] for place in one.partitions],
        }
        for one in described.values()
    ]
    if not dry_run:
        _ask("; ".join(_what(one) for one in aborted), yes)
        admin.fence_producers(described)
    return aborted


def _abort_hanging(admin: Admin, place: TopicPartition, start: int, *, yes: bool, dry_run: bool) -> dict[str, Any]:
    there = _open_since(admin, [place], SystemClock().wall_ms())
    found = [one for one in there if one.producer.transaction_start_offset == start]
    if not found:
        offsets = ", ".join(str(one.producer.transaction_start_offset) for one in there) or "none"
        raise CommandFailed(f"{place}: no open transaction begins at {start}; those that are open begin at: {offsets}")
    [one] = found
    if not _hanging(admin, found):
        names = sorted(set(_owners(admin, {one.producer.producer_id}).values()))
        hint = f": abort it by its id: strandline transaction abort {names[0]}" if names else ", it has ended by now"
        raise CommandFailed(f"the transaction at {place}, offset {start}, does not hang{hint}")
    aborted = {
        "transactional_id": None,
        "producer_id": one.producer.producer_id,
        "producer_epoch": one.producer.producer_epoch,
        "partitions": [[place.topic, place.partition]],
    }
    if not dry_run:
        _ask(_what(aborted), yes)
        admin.abort_transaction(
            place,
            producer_id=one.producer.producer_id,
            producer_epoch=one.producer.producer_epoch,
            coordinator_epoch=one.producer.coordinator_epoch,
        )
    return aborted


def _ask(what: str, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise CommandWrong(f"not aborting {what}: nobody is there to ask; say --yes to mean it")
    confirm(f"Abort {what}? It cannot be undone", abort=True, err=True)


def _what(one: dict[str, Any]) -> str:
    places = ", ".join(f"{topic}-{partition}" for topic, partition in one["partitions"])
    whose = one["transactional_id"] or f"producer {one['producer_id']} of epoch {one['producer_epoch']}"
    return f"the transaction of {whose} in {places}"


def late_ones(admin: Admin) -> list[Finding]:
    """Transactions that do not end, as findings of `strandline doctor`. Raises CommandFailed, or StrandlineError if the
    cluster cannot be asked."""
    now_ms = SystemClock().wall_ms()
    described: list[TransactionDescription] = []
    for listed in admin.list_transactions(states=OPEN):
        try:
            described += admin.describe_transactions([listed.transactional_id]).values()
        except KafkaError as error:
            if error.code is not ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                raise
    hanging = _hanging(admin, _open_since(admin, _led(admin, ()), now_ms - LATE_MS))
    told = (
        (place, one.producer_id, one.transaction_start_offset or 0, one.last_timestamp_ms) for place, one in hanging
    )
    return list(judge_transactions(described, told, now_ms))


def _hanging_document(one: Hanging) -> dict[str, Any]:
    return {"topic": one.place.topic, "partition": one.place.partition} | one.producer._asdict()


def _led(admin: Admin, names: tuple[str, ...]) -> list[TopicPartition]:
    """Every partition of these topics, or of all. Raises CommandFailed: one has no leader that could tell."""
    wanted = names or admin.list_topics(include_internal=True)
    parts = {TopicPartition(one.name, part.partition): part for one in admin.describe_topics(wanted)
             for part in one.partitions}  # fmt: skip
    silent = [place for place, part in parts.items() if part.leader is None]
    if silent:
        raise CommandFailed(f"{silent[0]} has no leader that tells of its transactions: name the topics that have")
    return list(parts)


def _open_since(admin: Admin, places: list[TopicPartition], oldest_ms: int) -> list[Hanging]:
    """Transactions that are open in these partitions, whose producers have written nothing since then."""
    return [
        Hanging(place, producer)
        for place, known in admin.describe_producers(places).items()
        for producer in known
        if producer.transaction_start_offset is not None and producer.last_timestamp_ms <= oldest_ms
    ]


def _hanging(admin: Admin, candidates: list[Hanging]) -> list[Hanging]:
    """Transactions that no coordinator will end, and that are open still.

    Raises:
        CommandFailed: a coordinator cannot be asked, or they moved meanwhile: whose transaction it is is not known.
    """
    if not candidates:
        return []
    before = _coordinators(admin)
    owned = set(_owners(admin, {one.producer.producer_id for one in candidates}))
    if _coordinators(admin) != before:
        raise CommandFailed("coordinators of transactions moved while they were asked: the same command again")
    alone = [one for one in candidates if (one.producer.producer_id, one.place) not in owned]
    now = {
        (one.place, one.producer.producer_id, one.producer.transaction_start_offset)
        for one in _open_since(admin, [one.place for one in alone], SystemClock().wall_ms())
    }  # others have ended meanwhile
    return [
        one for one in alone
        if (one.place, one.producer.producer_id, one.producer.transaction_start_offset) in now
    ]  # fmt: skip


def _owners(admin: Admin, producer_ids: set[int]) -> dict[tuple[int, TopicPartition], str]:
    """Transactional ids whose coordinators will end a transaction of a producer in a partition."""
    owners: dict[tuple[int, TopicPartition], str] = {}
    for name in [one.transactional_id for one in admin.list_transactions(producer_ids=sorted(producer_ids))]:
        try:
            told = admin.describe_transactions([name])[name]
        except KafkaError as error:
            if error.code is not ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                raise
            continue  # expired since
        if told.state in OPEN:
            owners |= {(told.producer_id, place): name for place in told.partitions}
    return owners


def _coordinators(admin: Admin) -> list[tuple[int | None, int]]:
    """Leader and leader epoch of each partition of transactions. Raises CommandFailed: one has no leader."""
    if STATE_TOPIC not in admin.list_topics(include_internal=True):
        return []
    [described] = admin.describe_topics([STATE_TOPIC])
    silent = [part.partition for part in described.partitions if part.leader is None]
    if silent:
        raise CommandFailed(
            f"{STATE_TOPIC}-{silent[0]} has no leader: whether its coordinator will end a transaction is not known"
        )
    return [(part.leader, part.leader_epoch) for part in described.partitions]
