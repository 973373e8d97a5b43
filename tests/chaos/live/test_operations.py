"""The operator of `strandline chaos run --operations`: what is typed, without a cluster."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import click
import pytest

from strandline.chaos.live.cluster import LiveCluster
from strandline.chaos.live.operations import FACTOR, OPERATIONS, Operator
from strandline.cli.main import main

TOPICS = {"a": 3, "b": 1}


@pytest.mark.parametrize("nodes", [4, 6])
def test_what_is_typed_is_a_command_and_leaves_brokers_enough(nodes: int, tmp_path: Path) -> None:
    """A thousand commands: each is one that the command line takes, every kind comes but voters, for no
    controller can be spared, and those that are drained at any time leave a broker for every replica."""
    cluster = LiveCluster(nodes=nodes, controllers=FACTOR)
    try:
        operator = Operator(cluster, random.Random(7), TOPICS, tmp_path, print)
        kinds: Counter[str] = Counter()
        drained: dict[str, None] = {}
        wide: dict[str, None] = {}
        most = 0
        for _ in range(1000):
            kind, words = operator.draw()
            kinds[kind] += 1
            _parse(words)
            if words[:2] == ("broker", "drain"):
                drained.update(dict.fromkeys(word for word in words[2:] if word.isdigit()))
            elif words[:2] == ("broker", "recommission"):
                del drained[words[2]]
            elif "--replication-factor" in words:
                wide[words[2]] = None
                if words[words.index("--replication-factor") + 1] == str(FACTOR):
                    del wide[words[2]]
            elif "--to" in words:
                assert not drained.keys() & words[words.index("--to") + 1].split(",")
            assert nodes - len(drained) >= FACTOR + bool(wide)
            most = max(most, len(drained))
    finally:
        cluster.stop()
    assert set(kinds) == set(OPERATIONS) - {"voters"}
    assert most == nodes - FACTOR


def _parse(words: tuple[str, ...]) -> None:
    """What click makes of a command, without doing it. Raises UsageError."""
    command: click.Command = main
    context = click.Context(main)
    rest = list(words)
    while isinstance(command, click.Group):
        found = command.get_command(context, rest.pop(0))
        assert found is not None, words
        command = found
    command.make_context(command.name, rest, parent=context)


def test_every_operation_is_listed_with_a_sentence() -> None:
    """--list --operations, for people and for programs."""
    program = [sys.executable, "-m", "strandline.cli.main", "chaos", "run", "--list", "--operations"]
    done = subprocess.run([*program, "-o", "json"], capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stdout) == [{"operation": name, "what_it_does": what} for name, what in OPERATIONS.items()]
    assert "recommission" in subprocess.run(program, capture_output=True, text=True, timeout=60, check=True).stdout
