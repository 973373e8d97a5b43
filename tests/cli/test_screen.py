"""Text from outside reaches no terminal as it came (rule A29)."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from strandline.cli.common import CommandFailed, drawn_table
from strandline.cli.lazy import LazyGroup
from strandline.cli.screen import echo, say
from strandline.client import Admin, Consumer, NewTopic, Producer
from strandline.cluster.node.dev import DevCluster
from strandline.proto.printable import printable, printable_json, printable_lines

EVIL = "\x1b[2J\x1b]0;mine\x07[red]x[/red]\r\x9b1m\u202egnp.exe"
SHOWN = r"\x1b[2J\x1b]0;mine\x07[red]x[/red]\r\x9b1m\u202egnp.exe"


def obeyed(text: str) -> list[str]:
    """Signs that a terminal would obey, but for ends of lines."""
    return [one for one in text if not one.isprintable() and one not in "\n\t"]


def test_lines_stay_lines_and_words_stay_words() -> None:
    assert printable("жук, 日本 🎉 \n\t\ud800") == r"жук, 日本 🎉 \n\t\ud800"
    assert printable_lines(f"{EVIL}\tb\nc") == f"{SHOWN}\tb\nc"
    document = {"value": f"{EVIL} жук \U000e0001"}
    shown = printable_json(json.dumps(document, ensure_ascii=False, indent=1))
    assert (json.loads(shown), obeyed(shown), "жук" in shown) == (document, [], True)


def test_tables_are_no_markup_and_obeyed_by_nothing() -> None:
    """Cells, titles and headers."""
    table = drawn_table(["name[bold]", "n"], [[EVIL, 1]], title=f"of {EVIL}", width=200, colour=False)
    assert (obeyed(table), table.count(SHOWN), "name[bold]" in table) == ([], 2, True)
    coloured = drawn_table(["name"], [[EVIL]], title=None, width=200, colour=True)
    assert "\x1b[2J" not in coloured


@pytest.mark.parametrize("fails", [CommandFailed, click.ClickException, click.UsageError])
def test_lines_and_errors_of_every_command(fails: type[click.ClickException]) -> None:
    @click.command()
    def sub() -> None:
        echo(f"it is {EVIL}")
        say(EVIL, bold=True)
        raise fails(f"the server says: {EVIL}")

    class Main(LazyGroup):
        def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
            return sub

    told = CliRunner().invoke(Main(lazy={}), ["sub"])
    assert (obeyed(told.output), told.output.count(SHOWN), told.exit_code) == ([], 3, fails("").exit_code)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    with DevCluster(tmp_path_factory.mktemp("dev"), nodes=1) as cluster:
        with Admin(cluster.bootstrap) as admin:
            admin.create_topics([NewTopic("t", 1, 1)])
        with Producer(cluster.bootstrap) as producer:
            producer.send("t", EVIL.encode(), key=EVIL.encode(), headers=[(EVIL, EVIL.encode())])
        yield cluster


def on_a_terminal(*words: str) -> str:
    """What a command shows where standard output and standard error are one."""
    leader, follower = pty.openpty()
    try:
        with subprocess.Popen(
            [sys.executable, "-m", "strandline.cli.main", *words], stdin=follower, stdout=follower, stderr=follower
        ) as process:
            os.close(follower)
            told = b""
            try:
                while piece := os.read(leader, 1 << 16):
                    told += piece
            except OSError:  # the other end is closed
                pass
            process.wait(60)
    finally:
        os.close(leader)
    return told.decode().replace("\r\n", "\n")


def test_what_clients_chose_reaches_no_terminal(cluster: DevCluster) -> None:
    """Group and client ids, records, keys, headers; the node's log as well. Who reads a pipe gets records as they
    are."""
    where = ("-b", cluster.bootstrap)
    read = ("consume", "t", "--from-beginning", "--exit-at-end", *where)
    with Consumer(cluster.bootstrap, group_id=EVIL, client_id=EVIL, auto_offset_reset="earliest") as consumer:
        consumer.subscribe(["t"])
        assert consumer.poll(20)
        consumer.commit()
        told = [
            on_a_terminal("group", "list", *where),
            on_a_terminal("group", "describe", EVIL, *where),
            on_a_terminal("group", "describe", EVIL + "none", *where),
            on_a_terminal(*read, "--keys"),
            on_a_terminal(*read, "-o", "json"),
            on_a_terminal("topic", "describe", EVIL, *where),
        ]
    for text in told:
        for harm in ("\x1b[2J", "\x1b]0", "\x07", "\x9b", "\u202e", "\r"):
            assert harm not in text, text
        assert "mine" in text
    piped = subprocess.run([sys.executable, "-m", "strandline.cli.main", *read], capture_output=True, check=True)
    assert piped.stdout == EVIL.encode() + b"\n"
    assert not obeyed(Path(cluster.log_path(1)).read_text())
