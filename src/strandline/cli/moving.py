"""Parts that the commands which move replicas share: their options, a plan in words, and a plan carried out.

The moves are in the cluster's metadata and go on without the command: an interruption stops nothing that was begun, and
the same command goes on from what it finds.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from strandline.cli.common import (
    dry_run_option,
    interrupts,
    numbers,
    output_option,
    plural,
    print_json,
    print_table,
    progress,
    target_options,
)
from strandline.cli.screen import echo
from strandline.cli.sizes import shown_bytes
from strandline.proto.system import SystemClock

if TYPE_CHECKING:
    from threading import Event

    from strandline.client.admin import Admin
    from strandline.proto.ids import TopicPartition
    from strandline.tools.moves.layout import Cluster, HeldUp, Left, Partition, Plan
    from strandline.tools.moves.running import Progress, Running, Wait

F = TypeVar("F", bound=Callable[..., Any])

ROWS_SHOWN = 40
"""Moves of a plan that are printed; `-o json` has them all."""

ASSUMED_RATE = 50_000_000
"""Bytes a second of a broker by which the time is estimated where no throttle says how many."""

INTERVAL_S = 0.2
"""Seconds between two looks at the cluster, at least."""

LOOK_SHARE = 4
"""A look is followed by a rest of so many times its length: brokers and this program have work for each."""

SETTLED_MS = 3_000
"""Moves are over when none has been under way for so long."""

SAID_MS = 10_000
"""How often is said what the moves wait for."""

WAITS_SHOWN = 5

_RATE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kmg]?)(i?)b?(?:/s)?", re.IGNORECASE)


class Rate(click.ParamType[int]):
    """Bytes a second: ``50MB``, ``20MiB/s``, ``1000000``."""

    name = "rate"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Bytes a second of the text."""
        found = _RATE.fullmatch(str(value))
        if not found or not float(found.group(1)):
            self.fail(f"{value!r} is no rate: 50MB, 20MiB/s or a number of bytes a second, above 0", param, ctx)
        base = 1024 if found.group(3) else 1000
        return max(1, int(float(found.group(1)) * base ** " kmg".index(found.group(2).lower() or " ")))


def move_options(command: F) -> F:
    """The options of all commands that move replicas; the command takes them as `how`, `at_once`, `throttle`,
    `dry_run`, `output` and the target."""
    at_once = click.option(
        "--at-once", type=click.IntRange(1), default=4, show_default=True, metavar="N",
        help="Moves that one broker sends or receives at a time; the smallest go first.",
    )  # fmt: skip
    throttle = click.option(
        "--throttle", type=Rate(), metavar="RATE",
        help="Bytes a second that a broker sends and takes for them, as 50MB; taken away when they are over.",
    )  # fmt: skip
    flags = (
        ("--status", "status", "Say what is under way and what it waits for, and end."),
        ("--follow", "follow", "Watch what is under way to its end, and begin nothing."),
        ("--cancel", "cancel", "Cancel what is under way: the replicas are those of before."),
    )
    for name, value, text in reversed(flags):
        command = click.option(name, "how", flag_value=value, default=None, help=text)(command)
    return at_once(throttle(dry_run_option(output_option(target_options(command)))))


@dataclass(frozen=True)
class Ask:
    """What the command line says of how to move.

    Attributes:
        command: as it was typed, without these options: for advice.
        how: status, follow, cancel, or None: move.
    """

    command: str
    how: str | None
    at_once: int
    throttle: int | None
    dry_run: bool
    output: str

    @property
    def json(self) -> bool:
        return self.output == "json"


def watch(admin: Admin, ask: Ask, which: Callable[[Partition], bool]) -> None:
    """`--status`, `--follow`, `--cancel` of the moves that are asked for, whoever began them."""
    from strandline.tools.moves.running import cancel, watched
    from strandline.tools.moves.throttle import clear, left_over

    cluster, waits = watched(admin, which)
    if ask.how == "cancel":
        refused = []
        if waits and not ask.dry_run:
            refused = cancel(admin, [wait.tp for wait in waits])
            clear(admin, watched(admin, which)[0])
        _tell_cancelled(ask, waits, refused)
        return
    if ask.how == "follow" and not ask.dry_run:
        cluster = _follow(admin, which)
        taken, waits, verb = clear(admin, cluster), [], "was taken away"
    else:  # it changes nothing: another command may be about to begin its next move
        taken, verb = left_over(admin, cluster), f"is left: {ask.command} --follow takes it away"
    if ask.json:
        print_json({"under_way": _waits_document(waits), "throttles": taken, "taken_away": ask.how == "follow"})
        return
    _show_waits(waits)
    for one in taken:
        echo(f"a throttle of moves that are over ({one}) {verb}")


def _follow(admin: Admin, which: Callable[[Partition], bool]) -> Cluster:
    """Watch moves until none has been under way for `SETTLED_MS`: between two of a plan there may be none."""
    from strandline.tools.moves.running import elect, watched

    clock = SystemClock()
    mine: dict[TopicPartition, None] = {}
    most, since_ms = 1, clock.monotonic_ms()
    with interrupts() as interrupted:
        with progress("moving", "bytes") as report:
            while True:
                cluster, waits = watched(admin, which)
                now_ms = clock.monotonic_ms()
                since_ms = now_ms if waits else since_ms
                if interrupted.is_set() or now_ms - since_ms >= SETTLED_MS:
                    break
                mine.update(dict.fromkeys(wait.tp for wait in waits))
                lacks = sum(wait.lacks for wait in waits)
                most = max(most, lacks)
                report(most - lacks, most)
                interrupted.wait(INTERVAL_S)
        if not interrupted.is_set():
            elect(admin, mine)
    return cluster


def _tell_cancelled(ask: Ask, waits: Sequence[Wait], refused: Sequence[Left]) -> None:
    if ask.json:
        print_json({"cancelled": len(waits) - len(refused), "left": left_document(refused), "dry_run": ask.dry_run})
    else:
        _show_left(refused)
        verb = "would be cancelled" if ask.dry_run else "cancelled"
        echo(f"{plural(len(waits) - len(refused), 'move')} {verb}")
    if refused:
        sys.exit(1)


def _show_waits(waits: Sequence[Wait]) -> None:
    if not waits:
        echo("no move is under way")
        return
    rows = [(str(wait.tp), shown_bytes(wait.lacks), "; ".join(wait.why)) for wait in waits]
    print_table(("partition", "lacks", "waits for"), rows)
    echo(f"{plural(len(waits), 'move')} under way, {shown_bytes(sum(wait.lacks for wait in waits))} to be copied")


def _waits_document(waits: Sequence[Wait]) -> list[dict[str, Any]]:
    return [
        {"topic": one.tp.topic, "partition": one.tp.partition, "lacks_bytes": one.lacks, "waits_for": list(one.why)}
        for one in waits
    ]


def left_document(left: Sequence[Left]) -> list[dict[str, Any]]:
    """What was not done, for programs."""
    return [{"topic": one.tp.topic, "partition": one.tp.partition, "why": one.why} for one in left]


def plan_document(ask: Ask, plan: Plan) -> dict[str, Any]:
    """A plan for programs."""
    rate = ask.throttle or ASSUMED_RATE
    return {
        "moves": [
            {
                "topic": move.tp.topic,
                "partition": move.tp.partition,
                "from": list(move.before),
                "to": list(move.after),
                "bytes": move.bytes,
                "reasons": list(move.reasons),
            }
            for move in plan.moves
        ],
        "directories": [
            {"topic": one.tp.topic, "partition": one.tp.partition, "broker": one.broker, "from": one.source,
             "to": one.target, "bytes": one.bytes}
            for one in plan.directories
        ],
        "cancelled": left_document(plan.cancel),
        "left": left_document(plan.left),
        "held_up": [
            {"broker": one.broker, "why": "down",
             "partitions": [{"topic": tp.topic, "partition": tp.partition} for tp in one.partitions]}
            for one in plan.held_up
        ],
        "bytes": plan.bytes,
        "bytes_per_second": rate,
        "estimated_seconds": round(plan.estimate_s(rate), 1),
        "dry_run": ask.dry_run,
    }  # fmt: skip


def show_plan(ask: Ask, plan: Plan) -> None:
    """Print a plan: which brokers are down and hold moves up, each move with bytes and reason, and the time that it
    takes. For programs the first alone, on stderr: they have the rest at the end."""
    for held_up in plan.held_up:
        echo(_held_up(held_up), err=True)
    if ask.json:
        return
    rows: list[tuple[object, ...]] = [
        (str(move.tp), numbers(move.before), numbers(move.after), shown_bytes(move.bytes), "; ".join(move.reasons))
        for move in plan.moves
    ]
    rows += [
        (
            str(one.tp),
            f"{one.broker}: {one.source}",
            f"{one.broker}: {one.target}",
            shown_bytes(one.bytes),
            "directories",
        )
        for one in plan.directories
    ]
    if rows:
        print_table(("partition", "from", "to", "copied", "why"), rows[:ROWS_SHOWN])
    if len(rows) > ROWS_SHOWN:
        echo(f"... and {len(rows) - ROWS_SHOWN:,} more: --output json has them all")
    for one in plan.cancel:
        echo(f"{one.tp}: its move is cancelled, {one.why}")
    _show_left(plan.left)
    if not rows:
        echo("nothing is to be moved" if not plan.left else "nothing can be moved")
        return
    rate = ask.throttle or ASSUMED_RATE
    by = "the throttle" if ask.throttle else "assumed: --throttle sets a limit"
    verb = "would move" if ask.dry_run else "to move"
    echo(
        f"{plural(len(rows), 'partition')} {verb}, {shown_bytes(plan.bytes)} copied between brokers: about "
        f"{shown_seconds(plan.estimate_s(rate))} at {rate / 1e6:,.1f} MB a second and broker ({by})"
    )


def _held_up(one: HeldUp) -> str:
    named = ", ".join(map(str, one.partitions[:WAITS_SHOWN]))
    rest = len(one.partitions) - WAITS_SHOWN
    more = f" and {rest:,} more" if rest > 0 else ""
    return (
        f"! broker {one.broker} is down: {plural(len(one.partitions), 'move')} ({named}{more}) cannot end before it is "
        f"back and in sync. Start it first; or, if it does not come back, take it out first: `strandline broker "
        f"decommission {one.broker}`"
    )


def _show_left(left: Sequence[Left]) -> None:
    for one in left[:ROWS_SHOWN]:
        echo(f"! {one.tp} stays: {one.why}")
    if len(left) > ROWS_SHOWN:
        echo(f"! ... and {len(left) - ROWS_SHOWN:,} more")


def shown_seconds(seconds: float) -> str:
    """``40 s``, ``12 min``, ``3.5 h``."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:,.0f} min" if seconds < 5400 else f"{seconds / 3600:,.1f} h"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a plan ended."""

    plan: Plan
    moved: int
    bytes: int
    left: tuple[Left, ...]


def carry_out(admin: Admin, ask: Ask, plan: Plan) -> Outcome:
    """Make the moves of a plan, watch them, elect the preferred leaders, and take the throttle away.

    An interruption leaves what was begun going, and says how to go on.
    """
    from strandline.tools.moves.running import Running, elect
    from strandline.tools.moves.survey import survey
    from strandline.tools.moves.throttle import Throttle

    throttle = None if ask.throttle is None else Throttle(admin, ask.throttle)
    running = Running(admin, plan, clock=SystemClock(), at_once=ask.at_once, throttle=throttle)
    with interrupts() as interrupted:
        with progress("moving", "bytes") as report:
            state = _until_over(running, interrupted, report, ask)
        if not state.is_over:
            _tell_interrupted(ask, state)
            raise KeyboardInterrupt
        moved = [move for move in running.moved if move.before[0] != move.after[0]]
        state.left += elect(admin, [move.tp for move in moved])
        if throttle is not None:
            stays = not throttle.end(survey(admin))
            if stays and not ask.json:
                echo(f"the throttle stays, for other moves are under way: {ask.command} --follow takes it away")
        _move_directories(admin, plan, interrupted)
    return Outcome(plan, state.done, sum(move.bytes for move in running.moved), (*plan.left, *state.left))


def _until_over(running: Running, interrupted: Event, report: Callable[[int, int], None], ask: Ask) -> Progress:
    clock = SystemClock()
    said_ms = clock.monotonic_ms()
    while True:
        began_ms = clock.monotonic_ms()
        state = running.step()
        report(state.copied, max(state.bytes, 1))
        if state.is_over or interrupted.is_set():
            return state
        now_ms = clock.monotonic_ms()
        if now_ms - said_ms >= SAID_MS and not ask.json:
            said_ms = now_ms
            for wait in sorted(state.waits, key=lambda one: -one.lacks)[:WAITS_SHOWN]:
                echo(f"{wait.tp} waits: {'; '.join(wait.why)}", err=True)
            if state.waiting:
                echo(f"{plural(state.waiting, 'move')} not begun yet", err=True)
        interrupted.wait(max(INTERVAL_S, LOOK_SHARE * (now_ms - began_ms) / 1000))


def _tell_interrupted(ask: Ask, state: Progress) -> None:
    echo(
        f"interrupted: {plural(state.under_way, 'move')} under way, which the cluster goes on with; "
        f"{state.waiting:,} not begun. To watch: {ask.command} --follow. To begin the rest: {ask.command}. To take "
        f"back what is under way: {ask.command} --cancel.",
        err=True,
    )
    if ask.throttle is not None:
        echo("The throttle stays until one of these ends.", err=True)


def _move_directories(admin: Admin, plan: Plan, interrupted: Event) -> None:
    if not plan.directories:
        return
    wanted = {(one.tp.topic, one.tp.partition, one.broker): one.target for one in plan.directories}
    for (topic, partition, broker), error in admin.alter_replica_log_dirs(wanted).items():
        if error is not None:
            echo(f"! {topic}-{partition} on broker {broker} stays in its directory: {error}", err=True)
    brokers = sorted({one.broker for one in plan.directories})
    while not interrupted.is_set():
        found = [one for dirs in admin.describe_log_dirs(brokers).values() for one in dirs]
        if not any(one.moving for one in found):
            return
        interrupted.wait(INTERVAL_S)


def finish(ask: Ask, outcome: Outcome, **more: Any) -> None:
    """Tell how it ended. Exits 1 where something was left."""
    plan = outcome.plan
    if ask.json:
        told = {"moved": outcome.moved, "left": left_document(outcome.left), **more}
        print_json(plan_document(ask, plan) | told)
    else:
        _show_left(outcome.left[len(plan.left) :])
        echo(f"{plural(outcome.moved, 'partition')} moved, {shown_bytes(outcome.bytes)} copied")
    if outcome.left:
        sys.exit(1)


def move(admin: Admin, ask: Ask, plan: Plan) -> Outcome | None:
    """Show the plan, and carry it out unless it is only to be shown; None: it was."""
    show_plan(ask, plan)
    if ask.dry_run or plan.is_empty:
        if ask.json:
            print_json(plan_document(ask, plan))
        if plan.left:
            sys.exit(1)
        return None
    return carry_out(admin, ask, plan)
