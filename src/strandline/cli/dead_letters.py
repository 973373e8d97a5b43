"""`strandline dead-letters`: list, replay."""

from __future__ import annotations

from collections import Counter
from typing import Any

import click

from strandline.cli.common import (
    Target,
    check_reachable,
    dry_run_option,
    output_option,
    plain_errors,
    plural,
    print_json,
    print_table,
    target_options,
)
from strandline.cli.name_completion import topic_names
from strandline.cli.screen import echo
from strandline.client.config import CommonConfig
from strandline.client.errors import UnknownTopic
from strandline.tools.dead_letters import DeadLetter
from strandline.tools.replay import DeadLetterBox


@click.group("dead-letters")
def dead_letters() -> None:
    """Records whose handler gave up on them (strandline.tools): look at them, bring them back."""


def _box(target: Target, topic: str) -> DeadLetterBox:
    check_reachable(target)
    return DeadLetterBox(target.bootstrap, topic, target.settings_for(CommonConfig))


@dead_letters.command("list")
@click.argument("topic", shell_complete=topic_names)
@click.option("-a", "--all", "every", is_flag=True, help="Those that were replayed too.")
@output_option
@target_options
def list_letters(topic: str, every: bool, output: str, **where: Any) -> None:
    """Show what died of a topic, where it came from, and why.

    \b
    strandline dead-letters list orders
    strandline dead-letters list orders --output json | jq -r '.[].error'
    """
    target = Target(**where)
    with plain_errors(target):
        box = _box(target, topic)
        try:
            letters = [letter for _, letter in box.letters(replayed_too=every) if letter is not None]
        except UnknownTopic:
            letters = []
    if output == "json":
        print_json([_json(letter) for letter in letters])
        return
    if not letters:
        echo(f"no dead letters of {box.topic}" + ("" if every else " that were not replayed"))
        return
    rows = [
        (
            str(letter.where), letter.offset, str(letter.origin), letter.origin_offset, letter.group or "-",
            letter.attempts, f"{letter.error}: {letter.message}"[:100],
        )
        for letter in letters
    ]  # fmt: skip
    print_table(("dead letter", "offset", "origin", "origin offset", "group", "attempts", "cause"), rows)


def _json(letter: DeadLetter) -> dict[str, Any]:
    return {
        "partition": letter.where.partition,
        "offset": letter.offset,
        "origin_topic": letter.origin.topic,
        "origin_partition": letter.origin.partition,
        "origin_offset": letter.origin_offset,
        "origin_timestamp_ms": letter.origin_timestamp_ms,
        "error": letter.error,
        "message": letter.message,
        "attempts": letter.attempts,
        "group": letter.group,
        "died_ms": letter.died_ms,
    }


@dead_letters.command("replay")
@click.argument("topic", shell_complete=topic_names)
@dry_run_option
@output_option
@target_options
def replay(topic: str, dry_run: bool, output: str, **where: Any) -> None:
    """Send the dead letters of a topic back into it, each once; an interrupted replay goes on where it was.

    They go to the partition that they came from, at its end. Run one replay of a topic at a time.

    \b
    strandline dead-letters replay orders --dry-run
    strandline dead-letters replay orders
    """
    target = Target(**where)
    with plain_errors(target):
        box = _box(target, topic)
        if dry_run:
            _foretell(box, output)
            return
        done = box.replay()
    if output == "json":
        print_json({"topic": box.topic, "dry_run": False, **done._asdict()})
        return
    echo(f"replayed {plural(done.sent, 'dead letter')} into {box.topic}")
    if done.already:
        echo(f"{plural(done.already, 'dead letter')} had been replayed before the last replay was interrupted")
    if done.foreign:
        echo(f"skipped {plural(done.foreign, 'record')} of {box.dead} that are no dead letters", err=True)


def _foretell(box: DeadLetterBox, output: str) -> None:
    letters = [letter for _, letter in box.letters() if letter is not None]
    places = Counter(str(letter.origin) for letter in letters)
    if output == "json":
        print_json(
            {"topic": box.topic, "dry_run": True, "sent": len(letters), "partitions": dict(sorted(places.items()))}
        )
        return
    echo(f"would replay {plural(len(letters), 'dead letter')} into {box.topic}")
    for name, count in sorted(places.items()):
        echo(f"  {name}: {count}")
