"""`strandline topic copy`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from strandline.cli.common import (
    Target,
    check_reachable,
    dry_run_option,
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
from strandline.client.config import ProducerConfig

if TYPE_CHECKING:
    from strandline.tools.copy.topic_copy import CopyPreview, CopyResult


@click.command("copy")
@click.argument("source", shell_complete=topic_names)
@click.argument("target", shell_complete=topic_names)
@click.option("-p", "--partitions", type=click.IntRange(1), help="Of the target; left out: as many as the source has.")
@click.option("-r", "--replication", "--replication-factor", "replication", type=click.IntRange(1),
              help="Replicas of the target; left out: as many as the source has.")  # fmt: skip
@click.option("-c", "--config", "configs", multiple=True, metavar="KEY=VALUE",
              help="A setting of the target beside those of the source, as max.message.bytes=5000000.")  # fmt: skip
@click.option("-g", "--group", help="Where the progress is noted; left out: strandline-copy.SOURCE.TARGET.")
@click.option("--follow", is_flag=True, help="Go on with records that come later, until Ctrl-C.")
@click.option("--append", is_flag=True, help="Write into a target that has had records, behind them.")
@click.option("--accept-deleted", is_flag=True, help="Go on without records that were deleted before they were copied.")
@dry_run_option
@output_option
@target_options
def copy(
    *,
    source: str,
    target: str,
    partitions: int | None,
    replication: int | None,
    configs: tuple[str, ...],
    group: str | None,
    follow: bool,
    append: bool,
    accept_deleted: bool,
    dry_run: bool,
    output: str,
    **where: Any,
) -> None:
    """Copy every committed record of a topic into another one, repartitioned by key; interrupted, go on from there.

    The target is made unless it is there. Records go to partitions as clients send them (murmur2 of the key; those
    without a key go round by their offset), and keep key, value, headers and timestamp. It ends at the source's ends of
    the moment when it starts. Whatever is killed, the same command goes on where it ended, and writes nothing twice; a
    copy that still runs is relieved. Only the copy may write into the target meanwhile.

    \b
    strandline topic copy orders orders2 --partitions 12 --dry-run
    strandline topic copy orders orders2 --partitions 12
    strandline topic copy orders orders2 --follow
    strandline group describe strandline-copy.orders.orders2     # how far it is
    """
    from strandline.tools.copy.topic_copy import TopicCopy

    wanted = Target(**where)
    with plain_errors(wanted):
        settings = wanted.settings_for(ProducerConfig)
        check_reachable(wanted)
        with progress("copying", "offsets") as report:
            work = TopicCopy(
                wanted.bootstrap, source, target, partitions=partitions, replication_factor=replication,
                configs=parse_pairs(configs, "--config"), group=group, follow=follow, append=append,
                accept_deleted=accept_deleted, settings=settings, on_progress=report,
            )  # fmt: skip
            if dry_run:
                _show_preview(work.preview(), output)
                return
            try:
                result = work.run()
            except KeyboardInterrupt:
                if not follow:
                    echo("interrupted: the same command goes on where it ended", err=True)
                    raise
                result = work.result()
    _show(result, output)


def _show_preview(preview: CopyPreview, output: str) -> None:
    if output == "json":
        print_json(asdict(preview) | {"dry_run": True})
        return
    if preview.creates:
        settings = (
            ", ".join(f"{key}={value}" for key, value in preview.target_configs.items()) or "all at their defaults"
        )
        made = plural(preview.target_partitions, "partition")
        echo(f"would create topic {preview.target}: {made}, settings: {settings}")
    rows = [(part.partition, part.start, part.end, part.records) for part in preview.partitions]
    print_table((preview.source, "from offset", "to", "offsets"), rows)
    if preview.deleted:
        echo(f"! the records of {plural(preview.deleted, 'offset')} were deleted, and would be left out")
    echo(
        f"would copy {plural(preview.records, 'offset')} of {preview.source} to {preview.target} "
        f"({plural(preview.target_partitions, 'partition')}), noted by group {preview.group}"
    )


def _show(result: CopyResult, output: str) -> None:
    if output == "json":
        print_json(asdict(result))
        return
    if result.records:
        rows = [(part.partition, part.start, part.end, part.records) for part in result.partitions]
        print_table((f"{result.source}", "from offset", "to", "records"), rows)
        print_table((f"{result.target}", "ends at"), list(enumerate(result.target_ends)))
    if result.already:
        echo(f"an earlier run had written {plural(result.already, 'record')} of these")
    if result.deleted:
        echo(f"! the records of {plural(result.deleted, 'offset')} had been deleted: they are not in {result.target}")
    rate = f", {result.records / result.seconds:,.0f} a second" if result.seconds and result.records else ""
    echo(
        f"copied {plural(result.records, 'record')} of {result.source} to {result.target} "
        f"({plural(len(result.target_ends), 'partition')}) in {result.seconds:.1f} s{rate}"
    )
