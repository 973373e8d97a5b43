"""What code of servers logs within a command goes to stderr: stdout is the command's answer."""

from __future__ import annotations

import subprocess
import sys

import pytest

COMMAND = """
import sys
import types

import click
{before}
from strandline.cli.main import COMMANDS, main


@click.command()
def command():
    import structlog

    structlog.get_logger("strandline.log").info("a line of a server")
    click.echo("[]")


sys.modules["talkative"] = types.ModuleType("talkative")
sys.modules["talkative"].command = command
COMMANDS["talkative"] = "talkative:command"
main(["talkative"])
"""


@pytest.mark.parametrize("before", ["", "import structlog"])
def test_log_lines_do_not_mix_with_the_answer(before: str) -> None:
    """A program that reads the answer can parse it, whether the logging library was there before the command or not."""
    words = [sys.executable, "-c", COMMAND.format(before=before)]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (0, "[]\n"), ended.stderr
    assert "a line of a server" in ended.stderr
