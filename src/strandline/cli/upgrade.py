"""`strandline upgrade`: what the builds of the nodes can do, and the levels that the cluster has settled on."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from strandline.cli.common import (
    CommandFailed,
    CommandWrong,
    Target,
    admin_for,
    dry_run_option,
    output_option,
    print_json,
    print_table,
    target_options,
)
from strandline.cli.screen import echo
from strandline.client.types import FeaturesDescription
from strandline.controller.metadata.features import FEATURES, METADATA_FEATURE, Level
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError, StrandlineError

if TYPE_CHECKING:
    from strandline.client.admin import Admin

_BLOCKS = frozenset({ErrorCode.INVALID_UPDATE_VERSION, ErrorCode.FEATURE_UPDATE_FAILED, ErrorCode.INVALID_REQUEST})
"""Errors that refuse an update: the answer of a command that only asks whether it could be."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """The cluster.

    Attributes:
        nodes: by broker what it told, or why it told nothing.
        finalized: the level of each feature that any broker knows.
        possible: the levels that every broker knows, of features that can rise.
        blocked: why they cannot rise now; empty: they can, or there is nothing to raise.
    """

    nodes: Mapping[int, FeaturesDescription | str]
    finalized: Mapping[str, int]
    possible: Mapping[str, int]
    blocked: str


@click.group()
def upgrade() -> None:
    """Levels: a new build writes nothing that the old one does not know, until you finalize.

    \b
    strandline upgrade status                      what each node can do, and what the cluster has settled on
    strandline upgrade check                       what finalizing would do, and what blocks it
    strandline upgrade finalize                    raise the levels to what every node knows
    strandline upgrade downgrade metadata.version=1   go back, where that can be
    """


@upgrade.command()
@output_option
@target_options
def status(*, output: str, **where: Any) -> None:
    """Show what each broker's build knows, and the finalized level of every feature.

    Controllers that are no brokers are asked by `strandline upgrade check`.

    \b
    strandline upgrade status
    strandline upgrade status --output json
    """
    with admin_for(Target(**where)) as admin:
        seen = _look(admin)
    if output == "json":
        print_json(_as_json(seen))
        return
    rows = [
        (name, level, *(_known(seen.nodes[node], name) for node in seen.nodes), _next(seen, name))
        for name, level in sorted(seen.finalized.items())
    ]
    print_table(("feature", "level", *(f"node {node}" for node in seen.nodes), "can rise to"), rows)
    for node, told in seen.nodes.items():
        if isinstance(told, str):
            echo(f"! node {node} does not say what it knows: {told}")


@upgrade.command()
@output_option
@target_options
def check(*, output: str, **where: Any) -> None:
    """Say what finalizing would do, and what blocks it: every broker and every controller is asked. Exit code 1: it is
    blocked.

    \b
    strandline upgrade check
    """
    with admin_for(Target(**where)) as admin:
        seen = _look(admin)
    if output == "json":
        print_json(_as_json(seen))
    elif not seen.possible and not seen.blocked:
        echo("Every feature is at the highest level that all nodes know: there is nothing to finalize.")
    else:
        _tell_levels(seen.finalized, seen.possible)
        echo(f"! blocked: {seen.blocked}" if seen.blocked else "Every node is ready: strandline upgrade finalize")
    if seen.blocked:
        sys.exit(1)


@upgrade.command()
@click.argument("levels", nargs=-1, metavar="[FEATURE=LEVEL]...")
@dry_run_option
@output_option
@target_options
def finalize(*, levels: tuple[str, ...], dry_run: bool, output: str, **where: Any) -> None:
    """Raise levels to what every node knows, or to those that are named: all of them or none.

    From then on nodes of the old build cannot take part, until the levels are lowered again where they can be.

    \b
    strandline upgrade finalize --dry-run
    strandline upgrade finalize
    strandline upgrade finalize metadata.version=2
    """
    named = _parsed(levels)
    with admin_for(Target(**where)) as admin:
        seen = _look(admin)
        wanted = named or dict(seen.possible)
        if not wanted and seen.blocked:
            raise CommandFailed(seen.blocked)
        if wanted:
            admin.update_features(wanted, dry_run=dry_run)
    _tell_change(seen.finalized, wanted, dry_run=dry_run, output=output)


@upgrade.command()
@click.argument("levels", nargs=-1, required=True, metavar="FEATURE=LEVEL...")
@click.option("--unsafe", is_flag=True, help="Also where something is lost by it; what, is said before.")
@dry_run_option
@output_option
@target_options
def downgrade(*, levels: tuple[str, ...], unsafe: bool, dry_run: bool, output: str, **where: Any) -> None:
    """Lower levels again, so that nodes can go back to the build before.

    A level that cannot be left is refused. Go back to the old build node by node afterwards, and stop each node in good
    order: it has a snapshot behind the change then.

    \b
    strandline upgrade downgrade metadata.version=1 --dry-run
    strandline upgrade downgrade metadata.version=1
    """
    wanted = _parsed(levels)
    with admin_for(Target(**where)) as admin:
        seen = _look(admin)
        admin.update_features(wanted, downgrade="unsafe" if unsafe else "safe", dry_run=dry_run)
    _tell_change(seen.finalized, wanted, dry_run=dry_run, output=output)


def _parsed(levels: Sequence[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for text in levels:
        name, equals, number = text.partition("=")
        if not (name and equals and number.isdecimal()):
            raise CommandWrong(f"{text!r} is no FEATURE=LEVEL, as in {METADATA_FEATURE}=2")
        found[name] = int(number)
    return found


def _look(admin: Admin) -> _Seen:
    nodes: dict[int, FeaturesDescription | str] = {}
    for node in admin.describe_cluster().nodes:
        try:
            nodes[node.node_id] = "it is fenced, or not up" if node.fenced else admin.describe_features(node.node_id)
        except StrandlineError as error:
            nodes[node.node_id] = str(error)
    told = [one for one in nodes.values() if not isinstance(one, str)]
    newest = max(told, key=lambda one: -1 if one.epoch is None else one.epoch, default=None)
    if newest is None:
        raise CommandFailed(f"no broker says what it knows: {'; '.join(map(str, nodes.values()))}")
    finalized = newest.finalized  # the others may not have heard yet
    names = {name for one in told for name in one.supported}
    levels = {name: finalized.get(name, 0) for name in names}
    highest = {name: min(one.supported.get(name, (0, 0))[1] for one in told) for name in names}
    possible = {name: highest[name] for name in sorted(names) if highest[name] > levels[name] and _rises(name)}
    return _Seen(nodes, levels, possible, _blocked(admin, possible) if possible else _held_back(nodes, levels))


def _rises(name: str) -> bool:
    """Whether a feature rises with all others; what is not known here is for its own build to say."""
    return name not in FEATURES or not FEATURES[name].named


def _held_back(nodes: Mapping[int, FeaturesDescription | str], levels: Mapping[str, int]) -> str:
    """Nodes of older builds, for which nothing can rise although others know more, in words; empty: there are none."""
    known = {node: told.supported for node, told in nodes.items() if not isinstance(told, str)}
    faults = []
    for name, level in sorted(levels.items()):
        best = max(supported.get(name, (0, 0))[1] for supported in known.values())
        behind = [str(node) for node, supported in known.items() if supported.get(name, (0, 0))[1] < best]
        if best > level and behind and _rises(name):
            faults.append(f"{name} {best} is not known to the build of node {', '.join(behind)}")
    return "; ".join(faults) and f"{'; '.join(faults)}. Install the newer build there"


def _blocked(admin: Admin, possible: Mapping[str, int]) -> str:
    try:
        admin.update_features(possible, dry_run=True)
    except KafkaError as error:
        if error.code not in _BLOCKS:
            raise
        return error.message
    return ""


def _known(told: FeaturesDescription | str, name: str) -> str:
    if isinstance(told, str):
        return "?"
    first, last = told.supported.get(name, (0, 0))
    return str(first) if first == last else f"{first} to {last}"


def _next(seen: _Seen, name: str) -> str:
    level = seen.possible.get(name)
    return "-" if level is None else f"{level}, blocked (strandline upgrade check)" if seen.blocked else str(level)


def _between(name: str, low: int, high: int) -> list[Level]:
    """Levels above `low`, up to `high`, that this program knows."""
    feature = FEATURES.get(name)
    return [] if feature is None else [level for level in feature.levels if low < level.number <= high]


def _tell_levels(now: Mapping[str, int], wanted: Mapping[str, int]) -> None:
    for name, level in wanted.items():
        low, high = sorted((now.get(name, 0), level))
        for one in _between(name, low, high):
            left = "can be left again" if one.can_be_left else "CANNOT BE LEFT AGAIN"
            echo(f"{name} {one.number}: {one.adds}. It {left}: {one.leaving}.")


def _tell_change(now: Mapping[str, int], wanted: Mapping[str, int], *, dry_run: bool, output: str) -> None:
    if output == "json":
        print_json(
            {
                "dry_run": dry_run,
                "levels": {name: {"was": now.get(name, 0), "is": level} for name, level in wanted.items()},
            }
        )
        return
    if not wanted:
        echo("Every feature is at the highest level that all nodes know: there is nothing to finalize.")
    _tell_levels(now, wanted)
    for name, level in wanted.items():
        was, verb = now.get(name, 0), "would go" if dry_run else "went"
        echo(f"{name} is at {level} already." if was == level else f"{name} {verb} from {was} to {level}.")


def _as_json(seen: _Seen) -> dict[str, Any]:
    return {
        "finalized": dict(seen.finalized),
        "nodes": {
            str(node): {"error": told} if isinstance(told, str) else {"supported": dict(told.supported)}
            for node, told in seen.nodes.items()
        },
        "possible": {
            name: [
                {
                    "level": one.number,
                    "adds": one.adds,
                    "can_be_left": one.can_be_left,
                    "leaving": one.leaving,
                }
                for one in _between(name, seen.finalized[name], level)
            ]
            for name, level in seen.possible.items()
        },
        "blocked": seen.blocked or None,
    }
