"""`strandline tier restore`: a topic whose cluster is gone, made again of what the object store has of it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from uuid import UUID

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
from strandline.cli.screen import echo

if TYPE_CHECKING:
    from strandline.log.object_store import ObjectStore
    from strandline.log.tier.restoring import Brought, StoredTopic
    from strandline.tools.tier_restore import Wanted

REQUEST_MS = 300_000
"""Timeout of the creation, in milliseconds: the broker reads every sidecar before it answers."""

SERVED_S = 60.0
"""Seconds that the new leaders may take to begin."""


def store_settings(_context: click.Context, parameter: click.Parameter, pairs: tuple[str, ...]) -> dict[str, str]:
    """KEY=VALUE of an object store, as an option takes them; a value may be ${env:NAME}."""
    from strandline.proto.secrets import resolved

    option = parameter.opts[0]
    try:
        return {key: resolved(value) for key, value in parse_pairs(pairs, option).items()}
    except ValueError as error:
        raise click.BadParameter(f"a value refers to {error}", param_hint=option) from None


@click.command()
@click.argument("topic")
@click.option("--store", "url", required=True, envvar="STRANDLINE_STORE", show_envvar=True, metavar="URL",
              help="The store of the new cluster: remote.log.storage.url of its nodes.")  # fmt: skip
@click.option("--from", "source_url", metavar="URL",
              help="Where the lost cluster's objects are; left out: in the same store.")  # fmt: skip
@click.option("--store-option", "options", multiple=True, metavar="KEY=VALUE", callback=store_settings,
              help="As remote.log.storage.options, of --store, and of --from without any of its own.")  # fmt: skip
@click.option("--from-option", "source_options", multiple=True, metavar="KEY=VALUE", callback=store_settings,
              help="The same of --from.")  # fmt: skip
@click.option("--timeout", "timeout_s", type=click.FloatRange(min=0.1), default=120.0, show_default=True,
              metavar="SECONDS", help="For one request to a store; a segment is copied by one.")  # fmt: skip
@click.option("--topic-id", type=click.UUID, help="The topic's id in the store, where there are several of its name.")
@click.option("--cluster-id", help="The lost cluster's id, where several clusters have the topic in the store.")
@click.option("-p", "--partitions", type=click.IntRange(1),
              help="How many the topic had; left out: as many as have something in the store.")  # fmt: skip
@click.option("-r", "--replication", type=click.IntRange(1), help="Replicas; without it: the broker's default.")
@click.option("-c", "--config", "configs", multiple=True, metavar="KEY=VALUE",
              help="A setting of the topic; retention.ms is -1 without one, for old records would go.")  # fmt: skip
@click.option("--allow-loss", is_flag=True,
              help="Leave out what is damaged, and what lies in front of a gap, instead of refusing.")  # fmt: skip
@dry_run_option
@output_option
@target_options
def restore(
    *,
    topic: str,
    url: str,
    source_url: str | None,
    options: dict[str, str],
    source_options: dict[str, str],
    timeout_s: float,
    topic_id: UUID | None,
    cluster_id: str | None,
    partitions: int | None,
    replication: int | None,
    configs: tuple[str, ...],
    allow_loss: bool,
    dry_run: bool,
    output: str,
    **where: Any,
) -> None:
    """Make a topic of what the object store has of it, after its cluster was lost with all disks.

    Records come back under their offsets, with their times, headers and leader epochs; new ones are written behind
    them. Objects that lie under the new cluster's own id are used where they are, all others are copied there; nothing
    is changed of what lies under the lost cluster's. Whatever is killed, the same command goes on where it ended.
    Committed offsets of groups and the topic's settings are not in the store.

    \b
    strandline tier restore orders --store s3://backup/strandline --dry-run
    strandline tier restore orders --store s3://backup/strandline -c retention.ms=31536000000
    strandline tier restore orders --store s3://new/strandline --from s3://backup/strandline
    """
    from strandline.client.admin import Admin
    from strandline.client.config import AdminConfig
    from strandline.tools import tier_restore as work

    if source_options and source_url is None:
        raise click.UsageError("--from-option goes with --from, which is not there")
    stores = _Stores(url, options, source_url, source_options, timeout_s)
    settings = {**work.MEANWHILE, **parse_pairs(configs, "--config")}
    target, brought = Target(**where), None
    with plain_errors(target):
        with progress("reading sidecars", "segments") as report:
            found = asyncio.run(stores.find(topic, report))
        check_reachable(target)
        patience = target.settings_for(
            AdminConfig, request_timeout_ms=REQUEST_MS, default_api_timeout_ms=2 * REQUEST_MS
        )
        with Admin(target.bootstrap, **patience) as admin:
            own = admin.describe_cluster().cluster_id or ""
            stored = work.choose(found, own, topic_id=topic_id, cluster_id=cluster_id)
            wanted = work.Wanted(work.partitions_of(stored, partitions), replication or -1, settings, allow_loss)
            there = work.is_there(admin, stored)
            if not there:
                work.check(admin, stored, wanted)
            if not there and not dry_run:
                with progress("copying", "bytes") as report:
                    brought = asyncio.run(stores.bring(stored, own, report))
                work.create(admin, stored, wanted)
                work.wait_until_served(admin, stored, SERVED_S)
    if output == "json":
        print_json(_document(stored, own, wanted, brought, existed=there, dry_run=dry_run))
    else:
        _show(stored, own, wanted, brought, existed=there)


class _Stores:
    """Stores that objects are taken from, and put into."""

    def __init__(
        self,
        url: str,
        options: dict[str, str],
        source_url: str | None,
        source_options: dict[str, str],
        timeout_s: float,
    ) -> None:
        self._target = url, options
        self._source = (url, options) if source_url is None else (source_url, source_options or options)
        self._timeout_ms = 1000 * timeout_s

    def _open(self, where: tuple[str, dict[str, str]]) -> ObjectStore:
        from strandline.log.object_store import open_store

        return open_store(*where, timeout_ms=self._timeout_ms, make=False)

    async def find(self, topic: str, report: Any) -> list[StoredTopic]:
        from strandline.log.tier.restoring import find_stored_topics

        source = self._open(self._source)
        try:
            return await find_stored_topics(source, topic, report)
        finally:
            await source.close()

    async def bring(self, stored: StoredTopic, own: str, report: Any) -> Brought:
        from strandline.log.tier.restoring import bring

        source, target = self._open(self._source), self._open(self._target)
        try:
            return await bring(source, target, stored, own, is_same_store=self._source == self._target, report=report)
        finally:
            await source.close()
            await target.close()


def _show(stored: StoredTopic, own: str, wanted: Wanted, brought: Brought | None, *, existed: bool) -> None:
    rows = [
        (number, len(chain.segments), chain.size_bytes, chain.start_offset, chain.end_offset)
        for number, chain in stored.chains.items()
    ]
    title = f"{stored.topic}, topic id {stored.topic_id} of cluster {stored.cluster_id}"
    print_table(("partition", "segments", "bytes", "first offset", "end offset"), rows, title=title)
    for chain in stored.chains.values():
        for one in chain.left_out:
            echo(f"{'! lost' if one.is_loss else 'left out'}: {one.segment.log_key}: {one.why}")
    if existed:
        echo(f"{stored.topic} is there already, with this id: nothing was done.")
        return
    with_settings = ", ".join(f"{key}={value}" for key, value in wanted.configs.items())
    if brought is None:
        echo(f"would create {stored.topic} with {plural(wanted.partitions, 'partition')} and {with_settings}")
        return
    if brought.segments:
        echo(f"{plural(brought.segments, 'segment')}, {plural(brought.bytes, 'byte')}, copied for cluster {own}.")
    echo(f"created {stored.topic} with {plural(wanted.partitions, 'partition')} and {with_settings}")
    echo(
        "Committed offsets are not in the store: set those of groups with `strandline group reset-offsets`, by time or "
        "by offset."
    )


def _document(
    stored: StoredTopic, own: str, wanted: Wanted, brought: Brought | None, *, existed: bool, dry_run: bool
) -> dict[str, Any]:
    return {
        "topic": stored.topic,
        "topic_id": str(stored.topic_id),
        "from_cluster_id": stored.cluster_id,
        "cluster_id": own,
        "num_partitions": wanted.partitions,
        "configs": wanted.configs,
        "partitions": [
            {
                "partition": number,
                "segments": len(chain.segments),
                "size_bytes": chain.size_bytes,
                "start_offset": chain.start_offset,
                "end_offset": chain.end_offset,
                "left_out": [
                    {"object": one.segment.log_key, "why": one.why, "is_loss": one.is_loss} for one in chain.left_out
                ],
            }
            for number, chain in stored.chains.items()
        ],
        "copied_segments": 0 if brought is None else brought.segments,
        "copied_bytes": 0 if brought is None else brought.bytes,
        "existed": existed,
        "dry_run": dry_run,
    }
