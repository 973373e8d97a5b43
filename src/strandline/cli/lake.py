"""`strandline lake`: a topic kept as Parquet, or as an Iceberg table."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from strandline.cli.common import (
    CommandFailed,
    CommandWrong,
    Target,
    admin_for,
    dry_run_option,
    interrupts,
    output_option,
    parse_pairs,
    plain_errors,
    plural,
    print_json,
    print_table,
    progress,
    target_options,
)
from strandline.cli.name_completion import topic_names
from strandline.cli.screen import echo
from strandline.client.config import CommonConfig
from strandline.proto.errors import StrandlineError
from strandline.proto.system import SystemClock

if TYPE_CHECKING:
    from strandline.client.admin import Admin
    from strandline.lake.commits import Lake, State
    from strandline.tools.lake.export import Result, Sink
    from strandline.tools.lake.shape import Shape

NAMESPACE = "strandline"
"""Namespace of Iceberg tables that were named without one."""

READING: dict[str, Any] = {"isolation_level": "read_committed", "max_partition_fetch_bytes": 8 << 20}
"""Committed records alone; an answer of the size that writing Parquet makes worth while."""


@click.group()
def lake() -> None:
    """Keep a topic as Parquet files by day, or as an Iceberg table, each record once; look after such a lake."""


@lake.command("export")
@click.argument("topic", shell_complete=topic_names)
@click.option("--to", "place", metavar="DIR|URL", help="A directory, or s3://bucket/prefix (gs://, az:// likewise).")
@click.option("--format", "format_", type=click.Choice(["parquet", "iceberg"]), default="parquet", show_default=True,
              help="Parquet files with a commit log of their own, or an Iceberg table.")  # fmt: skip
@click.option("--catalog", metavar="URL", help="With iceberg: sqlite:///FILE, postgresql://..., http://... (REST).")
@click.option("--catalog-option", "catalog_options", multiple=True, metavar="KEY=VALUE",
              help="With iceberg: a property of pyiceberg's catalog, as token=...")  # fmt: skip
@click.option("--table", metavar="NAMESPACE.NAME", help=f"With iceberg; left out: {NAMESPACE}. and the topic's name.")
@click.option("--value", "kind", type=click.Choice(["bytes", "json", "avro", "protobuf"]), default="bytes",
              show_default=True, help="What a value is; all but bytes become columns by --schema.")  # fmt: skip
@click.option("--schema", type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="JSON Schema or a mapping of names to types; .avsc; FileDescriptorSet.")  # fmt: skip
@click.option("--message", help="With protobuf: the full name of the message, where the set has several.")
@click.option("--follow", is_flag=True, help="Go on with records that come later, until Ctrl-C.")
@click.option("--new-topic", is_flag=True, help="The topic was deleted and made anew: go on with the new one.")
@click.option("--commit-interval", type=click.FloatRange(0.1), default=60.0, show_default=True, metavar="SECONDS",
              help="Commit what was read at least so often.")  # fmt: skip
@click.option("--batch-rows", type=click.IntRange(1), default=100_000, show_default=True,
              help="Records in memory at a time, or a batch of the log more.")  # fmt: skip
@click.option("--batch-bytes", type=click.IntRange(1), default=64 << 20, show_default=True,
              help="Their bytes, likewise; and those that wait to be written.")  # fmt: skip
@click.option("--file-bytes", type=click.IntRange(1), default=128 << 20, show_default=True,
              help="A file ends once it is so large.")  # fmt: skip
@dry_run_option
@output_option
@target_options
def export(*, topic: str, place: str | None, format_: str, follow: bool, new_topic: bool, output: str,
           commit_interval: float, batch_rows: int, batch_bytes: int, file_bytes: int, dry_run: bool,
           **others: Any) -> None:  # fmt: skip
    """Keep a topic's committed records as Parquet by day of their time, each once; interrupted or killed, go on.

    How far it is stands in the lake's own commits. Records whose values do not fit --schema go to bad/, with the
    reason. See docs/lake.md.

    \b
    strandline lake export orders --to orders-lake
    strandline lake export orders --to s3://bucket/orders --follow
    strandline lake export orders --to orders-lake --value json --schema orders.json
    strandline lake export orders --to warehouse --format iceberg --catalog sqlite:///catalog.db
    """
    iceberg = {name: others.pop(name) for name in ("catalog", "catalog_options", "table")}
    values = {name: others.pop(name) for name in ("kind", "schema", "message")}
    target = Target(**others)
    _refuse_without_effect(format_, place, **iceberg, **values)
    if dry_run and format_ == "iceberg":
        raise CommandWrong("--dry-run is for --format parquet: an Iceberg table is made as soon as it is opened")
    with admin_for(target) as admin:
        from strandline.client.range_reader import RangeReader
        from strandline.tools.lake.export import Export, Limits

        shape = _shape(**values)
        sink = _sink(topic, format_, place, shape, **iceberg)
        limits = Limits(batch_rows, batch_bytes, file_bytes, int(commit_interval * 1000))
        settings = target.settings_for(CommonConfig) | READING
        with (
            RangeReader(target.bootstrap, **settings) as reader,
            interrupts() as interrupted,
            progress("exporting", "offsets") as told,
        ):
            run = Export(
                admin, reader, topic, sink, shape=shape, limits=limits, clock=SystemClock(), new_topic=new_topic,
                say=lambda text: echo(text, err=True), progress=told,
            )  # fmt: skip
            if dry_run:
                _show_pending(topic, place, run.pending(), output)
                return
            result = run.run(follow=follow, is_stopped=interrupted.is_set, wait=interrupted.wait)
            _show_result(topic, place or iceberg["catalog"], result, output)
    if result.behind:
        raise CommandFailed(
            f"{plural(len(result.behind), 'partition')} of {topic} ended before the lake does, see above"
        )


@lake.command("status")
@click.argument("place", metavar="DIR|URL")
@output_option
@target_options
def status(*, place: str, output: str, **where: Any) -> None:
    """Show what a lake has: offsets by partition, files, rows; how far the topics are ahead, if a broker answers.

    \b
    strandline lake status orders-lake
    """
    target = Target(**where)
    with plain_errors():
        state = _lake(place).state()
    ends, why = _ends(target, state)
    rows = []
    for (topic, number), end in sorted(state.ends.items()):
        log_end = ends.get((topic, number))
        rows.append((topic, number, end, log_end, None if log_end is None else log_end - end))
    if output == "json":
        names = ("topic", "partition", "offset", "log_end", "lag")
        document = {"partitions": [dict(zip(names, row, strict=True)) for row in rows], "lag_unknown": why}
        print_json({"lake": place, **_figures(state), "topic_ids": state.topic_ids, **document})
        return
    table = [tuple("-" if cell is None else cell for cell in row) for row in rows]
    print_table(("topic", "partition", "offset", "log end", "lag"), table)
    _say_state(state)
    if why is not None:
        echo(f"lag not known: {why}")


@lake.command("verify")
@click.argument("place", metavar="DIR|URL")
@output_option
def verify(*, place: str, output: str) -> None:
    """Check a lake: its commits follow on one another, their files are there with their rows. Reads every file's foot.

    Exits with 1 where something is wrong. Files that no commit names are leftovers of attempts, and are not read:
    `strandline lake compact` deletes them.

    \b
    strandline lake verify orders-lake
    """
    with plain_errors():
        from strandline.lake import upkeep

        verdict = upkeep.verify(_lake(place))
    if output == "json":
        print_json({"lake": place, "held": not verdict.wrong, "wrong": verdict.wrong, "leftovers": verdict.leftovers,
                    **_figures(verdict.state)})  # fmt: skip
    else:
        for text in verdict.wrong:
            echo(f"! {text}")
        for name in verdict.leftovers:
            echo(f"not in a commit: {name}")
        _say_state(verdict.state)
    if verdict.wrong:
        raise CommandFailed(f"{place} is damaged: {plural(len(verdict.wrong), 'file')} not as the commits say")


@lake.command("compact")
@click.argument("place", metavar="DIR|URL")
@click.option("--file-bytes", type=click.IntRange(1), default=128 << 20, show_default=True,
              help="Files end once they are so large; those of less than half of it are joined.")  # fmt: skip
@click.option("--keep-minutes", type=click.FloatRange(0), default=60.0, show_default=True,
              help="Delete files that do not count, if they were written, or compacted, so long ago.")  # fmt: skip
@dry_run_option
@output_option
def compact(*, place: str, file_bytes: int, keep_minutes: float, dry_run: bool, output: str) -> None:
    """Join small files of a day, and delete those that no commit names. An export may go on meanwhile.

    \b
    strandline lake compact orders-lake
    """
    with plain_errors():
        from strandline.lake import upkeep

        there = _lake(place)
        if dry_run:
            small = upkeep.joinable(there, file_bytes)
            stale = upkeep.vacuum(there, int(keep_minutes * 60_000), dry_run=True)
            if output == "json":
                print_json({"lake": place, "dry_run": True, "small_files": small, "deleted": stale})
            else:
                for date, count in small.items():
                    echo(f"{date}: {plural(count, 'small file')} would be joined")
                echo(f"{plural(stale, 'file')} that no commit names would be deleted")
            return
        before, after = upkeep.compact(there, file_bytes)
        deleted = upkeep.vacuum(there, int(keep_minutes * 60_000))
    if output == "json":
        print_json({"lake": place, "files_before": before, "files": after, "deleted": deleted})
    else:
        echo(f"{plural(before, 'file')} before, {after:,} now; {deleted:,} that did not count deleted")


@lake.command("repair")
@click.argument("place", metavar="DIR|URL")
@dry_run_option
@output_option
def repair(*, place: str, dry_run: bool, output: str) -> None:
    """Put commits that cannot be read aside, into broken/, so that the lake can be read and written again.

    Only the last commit can be put aside; the next export covers its offsets again. Stop exports into the lake first.

    \b
    strandline lake repair orders-lake --dry-run
    """
    with plain_errors():
        names = _lake(place).repair(dry_run=dry_run)
    if output == "json":
        print_json({"lake": place, "dry_run": dry_run, "broken": names})
        return
    for name in names:
        echo(f"{name}: {'would be put' if dry_run else 'put'} into broken/")
    if not names:
        echo(f"every commit of {place} can be read: nothing to repair")


@lake.command("files")
@click.argument("place", metavar="DIR|URL")
@click.option("--bad", is_flag=True, help="Those of records that fit no schema.")
@output_option
def files(*, place: str, bad: bool, output: str) -> None:
    """List the files that count, one a line: what a reader reads to see each record once.

    \b
    strandline lake files orders-lake
    """
    with plain_errors():
        from strandline.lake.commits import BAD, DATA

        there = _lake(place)
        state = there.state()
        folder, found = (BAD, state.bad) if bad else (DATA, state.files)
        rows = [(there.store.location(f"{folder}/{name}"), found[name]) for name in sorted(found)]
    if output == "json":
        print_json([{"file": name, "rows": count} for name, count in rows])
    else:
        for name, _count in rows:
            echo(name)


# -- inside ---------------------------------------------------------------------------------------------------------


def _lake(place: str) -> Lake:
    """Open an existing lake. Raises CommandFailed if there is none."""
    from strandline.lake.commits import COMMITS, Lake

    found = Lake(place)
    if not found.store.listed(COMMITS):
        raise CommandFailed(
            f"{place} is no lake: it has no commits/. Make one: strandline lake export TOPIC --to {place}"
        )
    return found


def _show_pending(topic: str, place: str | None, spans: dict[int, tuple[int, int]], output: str) -> None:
    """Offsets that a run would export."""
    if output == "json":
        parts = [{"partition": number, "from": start, "end": end} for number, (start, end) in sorted(spans.items())]
        print_json({"topic": topic, "lake": place, "dry_run": True, "partitions": parts})
        return
    print_table(("partition", "from", "end"), [(number, *span) for number, span in sorted(spans.items())])
    offsets = sum(end - start for start, end in spans.values())
    echo(f"would export {plural(offsets, 'offset')} of {topic} to {place}")


def _refuse_without_effect(
    format_: str, place: str | None, *, catalog: str | None, catalog_options: tuple[str, ...], table: str | None,
    kind: str, schema: Path | None, message: str | None,
) -> None:  # fmt: skip
    if format_ == "parquet" and (catalog or catalog_options or table):
        raise CommandWrong("--catalog, --catalog-option and --table are for --format iceberg")
    if format_ == "iceberg" and catalog is None:
        raise CommandWrong("--format iceberg needs --catalog: sqlite:///FILE, postgresql://..., or http://... (REST)")
    if format_ == "parquet" and place is None:
        raise CommandWrong("--to: a directory, or s3://bucket/prefix")
    if (kind == "bytes") != (schema is None):
        raise CommandWrong(
            f"--value {kind}: " + ("--schema is for json, avro and protobuf" if schema else "it needs --schema")
        )
    if message is not None and kind != "protobuf":
        raise CommandWrong("--message is for --value protobuf")


def _shape(*, kind: str, schema: Path | None, message: str | None) -> Shape:
    from strandline.tools.lake.shape import TAKEN, Shape

    if schema is None:
        return Shape()
    if kind == "protobuf":
        from strandline.tools.lake.protobuf import protobuf_values

        shape = Shape(protobuf_values(schema, message))
    else:
        from strandline.tools.lake.schemas import avro_values, json_values

        shape = Shape(json_values(schema) if kind == "json" else avro_values(schema))
    assert shape.typed is not None
    for field in shape.typed.struct:
        if field.name in TAKEN:
            echo(f"the value's {field.name} is the column value_{field.name}: {field.name} is the record's", err=True)
    return shape


def _sink(
    topic: str, format_: str, place: str | None, shape: Shape, *, catalog: str | None,
    catalog_options: tuple[str, ...], table: str | None,
) -> Sink:  # fmt: skip
    from strandline.lake.commits import Lake
    from strandline.tools.lake.export import LakeSink

    if format_ == "parquet":
        assert place is not None
        return LakeSink(Lake(place))
    from strandline.tools.lake.iceberg import IcebergSink, open_catalog

    assert catalog is not None
    if place is not None and "://" not in place:
        Path(place).mkdir(parents=True, exist_ok=True)
        place = Path(place).absolute().as_uri()
    options = parse_pairs(catalog_options, "--catalog-option")
    name = table or f"{NAMESPACE}.{re.sub('[^A-Za-z0-9_]', '_', topic)}"
    if "." not in name:
        raise CommandWrong(f"--table {name}: NAMESPACE.NAME is expected")
    return IcebergSink(open_catalog(catalog, place, options), name, shape)


def _ends(target: Target, state: State) -> tuple[dict[tuple[str, int], int], str | None]:
    """End offsets of the topics that are the lake's, and the reason where they are not known."""
    found: dict[tuple[str, int], int] = {}
    try:
        with admin_for(target) as admin:
            for topic in sorted({topic for topic, _ in state.ends}):
                found |= _ends_of(admin, topic, state.topic_ids.get(topic, ""))
    except (CommandFailed, StrandlineError) as error:
        return found, str(error)
    return found, None


def _ends_of(admin: Admin, topic: str, topic_id: str) -> dict[tuple[str, int], int]:
    from strandline.client.types import LATEST

    [told] = admin.describe_topics([topic])
    if topic_id not in ("", str(told.topic_id or "")):
        raise StrandlineError(f"topic {topic} has the id {told.topic_id}, the lake's had {topic_id}: it was made anew")
    ends = admin.list_offsets({(topic, part.partition): LATEST for part in told.partitions}, read_committed=True)
    return {(where.topic, where.partition): answer.offset for where, answer in ends.items()}


def _figures(state: State) -> dict[str, int]:
    return {"rows": state.rows, "bad": state.bad_rows, "lost": state.lost, "empty": state.empty,
            "files": len(state.files), "commits": state.next_number}  # fmt: skip


def _say_state(state: State) -> None:
    echo(f"{plural(state.rows, 'row')} in {plural(len(state.files), 'file')}, {plural(state.next_number, 'commit')}")
    _say_rest(state.bad_rows, state.lost, state.empty)


def _say_rest(bad: int, lost: int, empty: int) -> None:
    if bad:
        echo(f"! {plural(bad, 'record')} in bad/: they fit no row")
    if lost:
        echo(f"! {plural(lost, 'offset')} lost: deleted before they were exported")
    if empty:
        echo(f"{plural(empty, 'offset')} without a record (compacted away, ends of transactions, aborted ones)")


def _show_result(topic: str, place: str, result: Result, output: str) -> None:
    rows = [(number, start, end, sum(b - a for a, b in result.lost.get(number, ()))) for number, (start, end) in
            sorted(result.spans.items())]  # fmt: skip
    if output == "json":
        names = ("partition", "from", "to", "lost")
        figures = {"rows": result.rows, "bad": result.bad, "lost": result.lost_offsets, "empty": result.empty,
                   "files": result.files, "bytes": result.size_bytes, "commits": result.commits}  # fmt: skip
        print_json({"topic": topic, "to": place, **figures,
                    "partitions": [dict(zip(names, row, strict=True)) for row in rows]})  # fmt: skip
        return
    if rows:
        print_table(("partition", "from", "to", "lost"), rows)
    echo(f"{plural(result.rows, 'row')} of {topic} in {plural(result.files, 'file')} "
               f"({plural(result.size_bytes, 'byte')}), {plural(result.commits, 'commit')}: {place}")  # fmt: skip
    _say_rest(result.bad, result.lost_offsets, result.empty)
