"""`strandline topic move` and `strandline cluster rebalance`: replicas go to other brokers."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import click

from strandline.cli.common import CommandWrong, Target, admin_for
from strandline.cli.moving import Ask, finish, move, move_options, watch
from strandline.cli.name_completion import topic_names
from strandline.proto.ids import TopicPartition
from strandline.proto.system import SystemClock

if TYPE_CHECKING:
    from strandline.tools.moves.layout import Cluster, Plan


class Brokers(click.ParamType[tuple[int, ...]]):
    """Broker ids, as ``1,2,3``."""

    name = "brokers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """The ids of the text."""
        if not re.fullmatch(r"[0-9]+(,[0-9]+)*", str(value)):
            self.fail(f"{value!r} is no list of broker ids, as 1,2,3", param, ctx)
        return tuple(int(each) for each in str(value).split(","))


def _partitions(text: str) -> tuple[str, Callable[[int], bool]]:
    """Topic, and which of its partitions, of ``orders`` or ``orders:0,3-5``. Raises CommandWrong."""
    topic, colon, listed = text.partition(":")
    if not colon:
        return topic, lambda _: True
    if not re.fullmatch(r"[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*", listed):
        raise CommandWrong(f"{text!r}: behind the colon are partitions, as orders:0,3-5")
    ranges = [tuple(int(each) for each in one.split("-")) for one in listed.split(",")]
    return topic, lambda number: any(one[0] <= number <= one[-1] for one in ranges)


@click.command("move")
@click.argument("topic", metavar="TOPIC[:PARTITIONS]", shell_complete=topic_names)
@click.option("--to", type=Brokers(), metavar="BROKERS", help="Their replicas, as 1,2,3: the first leads.")
@click.option("--replication-factor", type=click.IntRange(1, 32767), metavar="N", help="So many replicas each.")
@click.option("--off", type=click.IntRange(0), metavar="BROKER", help="No replica on this broker.")
@move_options
def move_topic(
    *,
    topic: str,
    to: tuple[int, ...] | None,
    replication_factor: int | None,
    off: int | None,
    how: str | None,
    at_once: int,
    throttle: int | None,
    dry_run: bool,
    output: str,
    **where: Any,
) -> None:
    """Move the replicas of a topic to other brokers, or give it more or fewer of them.

    Writes and reads go on; a replica leaves only when those that come are in sync. With --to and several partitions
    each has the same brokers, and leads on the next of them. The plan is printed first, with the bytes that are copied.
    Ctrl-C stops nothing that was begun: the same command goes on.

    \b
    strandline topic move orders --to 4,5,6 --dry-run
    strandline topic move orders:0,3-5 --to 2,3,4 --throttle 50MB
    strandline topic move orders --replication-factor 3
    strandline topic move orders --off 2
    strandline topic move orders --status                     # what is under way, and what it waits for
    """
    name, chosen = _partitions(topic)
    goals = {"--to": to, "--replication-factor": replication_factor, "--off": off}
    given = [(option, value) for option, value in goals.items() if value is not None]
    if len(given) != (how is None):
        what = "one of --to, --replication-factor and --off" if how is None else f"--{how} alone"
        raise CommandWrong(f"say {what}")
    goal = "".join(
        f" {option} {value if isinstance(value, int) else ','.join(map(str, value))}" for option, value in given
    )
    ask = Ask(f"strandline topic move {topic}{goal}", how, at_once, throttle, dry_run, output)
    with admin_for(Target(**where)) as admin:
        from strandline.tools.moves.survey import survey

        [described] = admin.describe_topics([name])
        numbers = [part.partition for part in described.partitions if chosen(part.partition)]
        if not numbers:
            raise CommandWrong(f"{name} has {len(described.partitions)} partitions, and none of these: {topic}")
        mine = {TopicPartition(name, number) for number in numbers}
        if how is not None:
            watch(
                admin,
                Ask(f"strandline topic move {topic}", how, at_once, throttle, dry_run, output),
                lambda one: one.tp in mine,
            )
            return
        plan = _plan(survey(admin), mine, to=to, factor=replication_factor, off=off)
        outcome = move(admin, ask, plan)
        if outcome is not None:
            finish(ask, outcome)


def _plan(
    cluster: Cluster, mine: set[TopicPartition], *, to: tuple[int, ...] | None, factor: int | None, off: int | None
) -> Plan:
    from strandline.tools.moves.planner import change_factor, move_off, move_to

    if to is not None:
        places = {tp: place % len(to) for place, tp in enumerate(sorted(mine))}
        return move_to(cluster, {tp: (*to[place:], *to[:place]) for tp, place in places.items()})
    if factor is not None:
        return change_factor(cluster, factor, mine.__contains__)
    if off is None or off not in cluster.brokers:
        raise CommandWrong(f"there is no broker {off}: `strandline broker list` shows them")
    return move_off(cluster, [off], mine.__contains__)


@click.command("rebalance")
@click.option(
    "--by", type=click.Choice(["replicas", "bytes"]), default="replicas", show_default=True,
    help="What brokers have alike: as many replicas, or as many bytes within a tenth.",
)  # fmt: skip
@click.option(
    "--leaders", type=click.Choice(["count", "load", "none"]), default="count", show_default=True,
    help="What they lead alike: as many partitions, or those that were written as much in the last day.",
)  # fmt: skip
@click.option("--leaders-only", is_flag=True, help="Move no replica: leaderships alone, which copies nothing.")
@click.option("--log-dirs", is_flag=True, help="Even the log directories of each broker, too, by bytes.")
@move_options
def rebalance(
    *,
    by: Literal["replicas", "bytes"],
    leaders: Literal["count", "load", "none"],
    leaders_only: bool,
    log_dirs: bool,
    how: str | None,
    at_once: int,
    throttle: int | None,
    dry_run: bool,
    output: str,
    **where: Any,
) -> None:
    """Spread replicas and leaders evenly over the brokers, and copies of a partition over racks: for a broker that is
    new, or after one has left.

    No more is moved than one broker has too much; what is even already is not. Cordoned brokers get nothing and keep
    what they have.

    \b
    strandline cluster rebalance --dry-run
    strandline cluster rebalance --throttle 50MB
    strandline cluster rebalance --leaders-only --leaders load
    """
    typed = {"--by bytes": by == "bytes", f"--leaders {leaders}": leaders != "count", "--leaders-only": leaders_only}
    typed["--log-dirs"] = log_dirs
    command = " ".join(["strandline cluster rebalance", *(option for option, given in typed.items() if given)])
    ask = Ask(command, how, at_once, throttle, dry_run, output)
    with admin_for(Target(**where)) as admin:
        if how is not None:
            watch(admin, ask, lambda _: True)
            return
        from strandline.tools.moves import planner
        from strandline.tools.moves.survey import DAY_MS, survey

        since_ms = SystemClock().wall_ms() - DAY_MS if leaders == "load" else None
        cluster = survey(admin, since_ms)
        plan = planner.rebalance(cluster, by=by, leaders=leaders, directories=log_dirs, replicas=not leaders_only)
        outcome = move(admin, ask, plan)
        if outcome is not None:
            finish(ask, outcome)
