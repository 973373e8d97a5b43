"""Completion in shells: names of topics, groups and transactional ids, asked of the cluster that the line names.

Nothing is said and nothing raised here: who presses TAB where no broker answers gets no names, within a second or two.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any

import click

from strandline.proto.errors import StrandlineError

if TYPE_CHECKING:
    from strandline.client.aio.admin import Admin

_PATIENCE = {
    "request_timeout_ms": 1_000,
    "default_api_timeout_ms": 1_500,
    "socket_connection_setup_timeout_ms": 1_000,
}


def topic_names(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Topics that begin so; those on the command line already are left out."""
    return _names(context, parameter, incomplete, lambda admin: admin.list_topics())


def group_names(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Groups that begin so."""

    async def ask(admin: Admin) -> list[str]:
        return [group.group_id for group in await admin.list_groups()]

    return _names(context, parameter, incomplete, ask)


def transactional_ids(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Transactional ids that begin so."""

    async def ask(admin: Admin) -> list[str]:
        return [one.transactional_id for one in await admin.list_transactions()]

    return _names(context, parameter, incomplete, ask)


def resource_names(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Resources that `strandline config ... KIND` may be about: topics, or the numbers of brokers."""
    if context.params.get("kind") not in ("broker", "broker-logger"):
        return topic_names(context, parameter, incomplete)

    async def ask(admin: Admin) -> list[str]:
        return [str(node.node_id) for node in (await admin.describe_cluster()).nodes]

    return _names(context, parameter, incomplete, ask)


def _names(
    context: click.Context,
    parameter: click.Parameter,
    incomplete: str,
    ask: Callable[[Admin], Awaitable[Iterable[str]]],
) -> list[str]:
    given = context.params.get(parameter.name or "") or ()
    try:
        found = asyncio.run(_asked(context, ask))
    except (StrandlineError, OSError):
        return []
    return sorted(name for name in found if name.startswith(incomplete) and (name == incomplete or name not in given))


async def _asked(context: click.Context, ask: Callable[[Admin], Awaitable[Iterable[str]]]) -> list[str]:
    from strandline.client.aio.admin import Admin

    settings: dict[str, Any] = {**_PATIENCE, **(context.params.get("settings") or {})}
    bootstrap = context.params.get("bootstrap") or "127.0.0.1:9092"
    async with Admin(bootstrap, clock=None, rng=None, **settings) as admin:
        return list(await ask(admin))
