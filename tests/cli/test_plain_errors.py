"""What goes wrong in a command is one sentence and an exit code, whichever command it is."""

from __future__ import annotations

import errno
from pathlib import Path

import click
import pytest

from strandline.cli.common import Target, plain_errors
from strandline.client.errors import BrokerUnreachable
from strandline.proto.errors import ConfigError, StrandlineError

TARGET = Target("127.0.0.1:1", {})


@pytest.mark.parametrize("target", [None, TARGET])
def test_a_file_is_named(target: Target | None, tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    with pytest.raises(click.ClickException) as failed, plain_errors(target):
        missing.read_bytes()
    assert (failed.value.message, failed.value.exit_code) == (f"{missing}: No such file or directory", 1)


def test_a_full_disk_behind_the_output_is_a_sentence() -> None:
    with pytest.raises(click.ClickException) as failed, plain_errors(TARGET):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert failed.value.message == "No space left on device"


def test_a_reader_of_the_output_that_has_gone_is_click_s_to_end() -> None:
    with pytest.raises(BrokenPipeError), plain_errors(TARGET):
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("node.id", "x", "a number"), 2),
        (StrandlineError("refused"), 1),
        (BrokerUnreachable("127.0.0.1:1", "nobody listens"), 3),
    ],
)
def test_the_exit_code_says_whose_turn_it_is(error: Exception, code: int) -> None:
    with pytest.raises(click.ClickException) as failed, plain_errors(TARGET):
        raise error
    assert failed.value.exit_code == code
