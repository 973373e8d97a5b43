"""`strandline broker`: who is in the cluster and what each has; a broker is closed for new replicas, emptied, taken
out, and taken in again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
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
    plural,
    print_json,
    print_table,
    target_options,
)
from strandline.cli.moving import (
    INTERVAL_S,
    Ask,
    Outcome,
    carry_out,
    finish,
    left_document,
    move,
    move_options,
    plan_document,
    show_plan,
    watch,
)
from strandline.cli.screen import echo
from strandline.cli.sizes import shown_bytes
from strandline.client.types import ConfigChange, ConfigResource

if TYPE_CHECKING:
    from strandline.client.admin import Admin

CORDONED = "cordoned.log.dirs"


@click.group()
def broker() -> None:
    """Brokers: what each has; close one for new replicas, empty it, take it out, take it in again."""


@broker.command("list")
@output_option
@target_options
def list_brokers(output: str, **where: Any) -> None:
    """Show every broker: its state, what it leads and holds, and what is moving to it and from it.

    \b
    strandline broker list
    strandline broker list --output json
    """
    with admin_for(Target(**where)) as admin:
        from strandline.tools.moves.survey import survey

        addresses = {node.node_id: f"{node.host}:{node.port}" for node in admin.describe_cluster().nodes}
        cluster = survey(admin)
    leads = Counter(one.leader for one in cluster.partitions)
    copies = Counter(node for one in cluster.partitions for node in one.replicas)
    come = Counter(node for one in cluster.partitions for node in one.adding)
    go = Counter(node for one in cluster.partitions for node in one.removing)
    bytes_of: Counter[int] = Counter()
    for one in cluster.partitions:
        bytes_of.update(one.sizes)
    if output == "json":
        print_json(
            [
                {
                    "node_id": node,
                    "address": addresses.get(node),
                    "rack": one.rack,
                    "alive": one.alive,
                    "cordoned": one.cordoned if one.alive else None,
                    "leads": leads[node],
                    "replicas": copies[node],
                    "bytes": bytes_of[node] if one.alive else None,
                    "coming": come[node],
                    "going": go[node],
                }
                for node, one in sorted(cluster.brokers.items())
            ]
        )
        return
    rows = [
        (
            node, addresses.get(node, "-"), one.rack or "-",
            "! fenced" if not one.alive else "! cordoned" if one.cordoned else "serving",
            leads[node], copies[node], shown_bytes(bytes_of[node]) if one.alive else "?", come[node], go[node],
        )
        for node, one in sorted(cluster.brokers.items())
    ]  # fmt: skip
    print_table(("broker", "address", "rack", "state", "leads", "replicas", "bytes", "coming", "going"), rows)


@broker.command("cordon")
@click.argument("node_id", type=click.IntRange(0))
@dry_run_option
@output_option
@target_options
def cordon(*, node_id: int, dry_run: bool, output: str, **where: Any) -> None:
    """Close a broker for new replicas. It keeps what it has, and leads it.

    New topics and partitions pass over it, and nothing is moved to it. It is the broker's setting cordoned.log.dirs,
    which stands in the cluster's metadata: it holds until `strandline broker uncordon`, restarts included.

    \b
    strandline broker cordon 3
    """
    _change(node_id, "*", dry_run=dry_run, output=output, target=Target(**where))


@broker.command("uncordon")
@click.argument("node_id", type=click.IntRange(0))
@dry_run_option
@output_option
@target_options
def uncordon(*, node_id: int, dry_run: bool, output: str, **where: Any) -> None:
    """Let a broker have new replicas again. None are moved there: `strandline broker recommission` does both.

    \b
    strandline broker uncordon 3
    """
    _change(node_id, None, dry_run=dry_run, output=output, target=Target(**where))


def _change(node_id: int, value: str | None, *, dry_run: bool, output: str, target: Target) -> None:
    with admin_for(target) as admin:
        _require(admin, node_id)
        changed = _set_cordon(admin, node_id, value, dry_run=dry_run)
    if output == "json":
        print_json({"node_id": node_id, "cordoned": value is not None, "changed": changed and not dry_run})
        return
    state = "gets no new replicas" if value is not None else "may have new replicas"
    if not changed:
        echo(f"Broker {node_id} {state} already.")
    else:
        echo(f"Broker {node_id} {'would be' if dry_run else 'is'} {'un' if value is None else ''}cordoned: it {state}.")


def _set_cordon(admin: Admin, node_id: int, value: str | None, *, dry_run: bool) -> bool:
    """Whether that changes anything."""
    from strandline.tools.moves.survey import is_cordoned

    if is_cordoned(admin, node_id) is (value is not None):
        return False
    change = ConfigChange(CORDONED, value) if value else ConfigChange(CORDONED, operation="delete")
    admin.alter_configs({ConfigResource("broker", str(node_id)): [change]}, validate_only=dry_run)
    return True


def _require(admin: Admin, node_id: int) -> None:
    """Raises CommandWrong for a broker that there is not, or that is down."""
    found = next((one for one in admin.describe_cluster().nodes if one.node_id == node_id), None)
    if found is None:
        raise CommandWrong(f"broker {node_id} is not registered: `strandline broker list` shows who is")
    if found.fenced:
        raise CommandWrong(
            f"broker {node_id} is down, and takes the setting itself: start it; or, if it does not come back, take it "
            f"out by `strandline broker decommission {node_id}`"
        )


@broker.command("drain")
@click.argument("node_ids", type=click.IntRange(0), nargs=-1, required=True)
@move_options
def drain(
    *,
    node_ids: tuple[int, ...],
    how: str | None,
    at_once: int,
    throttle: int | None,
    dry_run: bool,
    output: str,
    **where: Any,
) -> None:
    """Empty brokers: they are cordoned, lead nothing, and their replicas go to the others.

    Refused, with numbers, where another broker cannot take a replica, or too few are left. Writes and reads go on.
    Ctrl-C stops nothing that was begun: the same command goes on. Afterwards a broker serves on, empty, until it is
    uncordoned. Several that are to go are named at once: no replica moves from one of them to another.

    \b
    strandline broker drain 3 --dry-run
    strandline broker drain 3 --throttle 50MB
    strandline broker drain 1 2                               # both at once
    strandline broker drain 3 --status                        # what is under way, and what it waits for
    """
    nodes = tuple(dict.fromkeys(node_ids))
    ask = Ask(f"strandline broker drain {' '.join(map(str, nodes))}", how, at_once, throttle, dry_run, output)
    with admin_for(Target(**where)) as admin:
        if how is not None:
            watch(admin, ask, lambda one: not {*nodes}.isdisjoint(one.removing))
            return
        for node_id in nodes:
            _known(admin, node_id)
        outcome = _drained(admin, ask, nodes)
        if outcome is not None:
            finish(ask, outcome, node_ids=list(nodes))


def _known(admin: Admin, node_id: int) -> bool:
    """True if the broker is alive. Raises CommandWrong if it does not exist."""
    for one in admin.describe_cluster().nodes:
        if one.node_id == node_id:
            return not one.fenced
    raise CommandWrong(f"broker {node_id} is not registered: `strandline broker list` shows who is")


def _drained(admin: Admin, ask: Ask, nodes: Sequence[int]) -> Outcome | None:
    """Empty the brokers; None: it was only to be said what would happen. Raises CommandFailed where it cannot be."""
    from strandline.tools.moves.planner import leaders_off, move_off, why_not_empty
    from strandline.tools.moves.survey import survey

    cluster = survey(admin)
    plan = move_off(cluster, nodes)
    if plan.left:
        raise CommandFailed(
            f"{why_not_empty(cluster, nodes, plan.left)}. Add a broker, `strandline broker uncordon` one, "
            f"{'name fewer brokers, ' if len(nodes) > 1 else ''}or give the topics fewer copies by `strandline topic "
            "move TOPIC --replication-factor N`"
        )
    show_plan(ask, plan)
    if ask.dry_run:
        if ask.json:
            print_json(plan_document(ask, plan) | {"node_ids": list(nodes)})
        return None
    alive = [node_id for node_id in nodes if cluster.brokers[node_id].alive]
    for node_id in alive:
        _set_cordon(admin, node_id, "*", dry_run=False)
    if alive:
        carry_out(admin, ask, leaders_off(survey(admin), alive))
    plan = move_off(survey(admin), nodes)
    outcome = carry_out(admin, ask, plan)
    with interrupts() as interrupted:
        while not interrupted.is_set():
            last = [one for one in survey(admin).partitions if not {*nodes}.isdisjoint(one.replicas)]
            if not any(one.moves for one in last):
                break
            interrupted.wait(INTERVAL_S)
    return outcome


@broker.command("decommission")
@click.argument("node_id", type=click.IntRange(0))
@click.option(
    "--no-wait", is_flag=True, help="Do not wait until its process is stopped: the same command does the rest."
)
@move_options
def decommission(
    *,
    node_id: int,
    no_wait: bool,
    how: str | None,
    at_once: int,
    throttle: int | None,
    dry_run: bool,
    output: str,
    **where: Any,
) -> None:
    """Take a broker out for good: it is drained, then you stop its process, then it is unregistered.

    Also for a broker that died: its replicas are made anew from the others. Refused, with numbers, where a factor could
    not be kept. The same command goes on wherever it was interrupted.

    \b
    strandline broker decommission 3 --dry-run
    strandline broker decommission 3 --throttle 50MB
    """
    ask = Ask(f"strandline broker decommission {node_id}", how, at_once, throttle, dry_run, output)
    with admin_for(Target(**where)) as admin:
        if how is not None:
            watch(admin, ask, lambda one: node_id in one.removing)
            return
        alive = _known(admin, node_id)
        outcome = _drained(admin, ask, [node_id])
        if outcome is None:
            return
        if outcome.left:
            finish(ask, outcome, node_id=node_id, unregistered=False)
        if alive and not ask.json:
            echo(f"Broker {node_id} is empty. Stop its process now; then it is taken out of the cluster.")
        gone = _wait_stopped(admin, node_id, wait=not no_wait)
        if gone:
            admin.unregister_broker(node_id)
        if ask.json:
            told = {
                "moved": outcome.moved,
                "left": left_document(outcome.left),
                "node_id": node_id,
                "unregistered": gone,
            }
            print_json(plan_document(ask, outcome.plan) | told)
        elif gone:
            echo(f"Broker {node_id} is taken out of the cluster ({plural(outcome.moved, 'partition')} moved).")
        else:
            echo(f"It still serves: once it is stopped, {ask.command} takes it out.")


def _wait_stopped(admin: Admin, node_id: int, *, wait: bool) -> bool:
    with interrupts() as interrupted:
        while _known(admin, node_id):
            if not wait or interrupted.is_set():
                return False
            interrupted.wait(INTERVAL_S)
    return True


@broker.command("recommission")
@click.argument("node_id", type=click.IntRange(0))
@move_options
def recommission(
    *, node_id: int, how: str | None, at_once: int, throttle: int | None, dry_run: bool, output: str, **where: Any
) -> None:
    """Take a broker into use, again or for the first time: it is uncordoned, and gets its part of replicas and leaders.

    It undoes a drain, and a decommission once the process runs again.

    \b
    strandline broker recommission 3 --dry-run
    strandline broker recommission 3 --throttle 50MB
    """
    ask = Ask(f"strandline broker recommission {node_id}", how, at_once, throttle, dry_run, output)
    with admin_for(Target(**where)) as admin:
        if how is not None:
            watch(admin, ask, lambda one: node_id in (*one.adding, *one.removing))
            return
        from dataclasses import replace

        from strandline.tools.moves.planner import rebalance
        from strandline.tools.moves.survey import survey

        _require(admin, node_id)
        _set_cordon(admin, node_id, None, dry_run=dry_run)
        cluster = survey(admin)
        opened = {**cluster.brokers, node_id: replace(cluster.brokers[node_id], cordoned=False)}
        plan = rebalance(replace(cluster, brokers=opened))
        outcome = move(admin, ask, plan)
        if outcome is not None:
            finish(ask, outcome, node_id=node_id)
