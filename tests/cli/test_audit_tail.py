"""`strandline audit tail` over files: the newest lines, what fits, what cannot be read, and lines that come while files
rotate. Over the topic: tests/cluster/node/test_audit_trail.py."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from strandline.cli import audit_sources
from strandline.cli.audit_sources import AuditFiles, AuditPair
from strandline.cli.main import main
from strandline.cluster.node.audit_trail import AuditFile
from strandline.proto.audit import audit_line
from strandline.proto.system import SystemClock

WHERE = {"host": "127.0.0.1", "listener": "SSL", "client_id": ""}


def writer(path: Path, *, max_bytes: int = 2_000, files: int = 1000) -> AuditFile:
    return AuditFile(str(path), max_bytes=max_bytes, files=files, clock=SystemClock())


def change(number: int, principal: str = "User:me", result: str = "NONE") -> str:
    figures = {"principal": principal, **WHERE, "api": "CreateTopics", "what": f"topic {number}", "result": result}
    return audit_line(1_700_000_000_000 + number, "change", figures)


def denied(number: int, principal: str) -> str:
    figures = {"principal": principal, **WHERE, "api": "DeleteTopics", "operation": "DELETE", "resource_type": "TOPIC"}
    more = {"resource": f"t{number}", "because": "no ACL names the resource", "suppressed": number}
    return audit_line(1_700_000_000_000 + number, "denied", {**figures, **more})


def tail(path: Path, *words: str, expect: int = 0) -> Result:
    told = CliRunner().invoke(main, ["audit", "tail", "--file", str(path), *words])
    assert told.exit_code == expect, (told.output, told.exception)
    return told


def numbers(output: str) -> list[int]:
    """Of the topics, where lines are JSON."""
    return [int(json.loads(line)["what"].rpartition(" ")[2]) for line in output.splitlines()]


def test_the_newest_lines_of_all_files(tmp_path: Path) -> None:
    """As many as are asked for, however many files they stand in; the newest last."""
    path = tmp_path / "audit.log"
    file = writer(path)
    for number in range(100):
        file.add(change(number))
    assert len(list(tmp_path.iterdir())) > 5
    assert numbers(tail(path, "-o", "json").stdout) == list(range(80, 100))
    assert numbers(tail(path, "-o", "json", "-n", "75").stdout) == list(range(25, 100))
    assert numbers(tail(path, "-o", "json", "-n", "1000").stdout) == list(range(100))
    assert tail(path, "-n", "0").output == ""
    assert tail(path, "-n", "1").output == (
        "2023-11-14T22:13:20.099+00:00  User:me  127.0.0.1  CreateTopics  topic 99  done\n"
    )
    assert "No such file" in tail(tmp_path / "none", expect=1).output


def test_what_is_asked_for(tmp_path: Path) -> None:
    """By principal, by API, operation or event, by result; lines that tell of missing ones are never left out."""
    path = tmp_path / "audit.log"
    file = writer(path)
    for number in range(40):
        file.add(
            denied(number, "User:eve") if number % 10 == 3 else change(number, "User:me" if number % 2 else "User:al")
        )
    file.add(change(40, result="TOPIC_ALREADY_EXISTS"))
    file.add(audit_line(0, "dropped", {"lines": 5}))

    def found(*words: str) -> list[str]:
        lines = [json.loads(line) for line in tail(path, "-n", "100", "-o", "json", *words).stdout.splitlines()]
        assert lines.pop()["lines"] == 5
        return [line.get("resource") or line["what"] for line in lines]

    assert found("--result", "denied") == ["t3", "t13", "t23", "t33"]
    assert found("--action", "delete") == found("--operation", "DeleteTopics") == found("--principal", "User:eve")
    assert found("--result", "failed") == found("--result", "topic_already_exists") == ["topic 40"]
    assert len(found("--result", "done", "--principal", "User:al", "--principal", "User:eve")) == 20
    assert len(found("--action", "login", "--action", "change")) == 37
    assert "neither denied, done, failed" in tail(path, "--result", "refused", expect=2).output
    shown = tail(path, "-n", "2", "--result", "denied").output
    assert "DELETE of TOPIC t33  denied: no ACL names the resource  (33 more before it left out)" in shown
    assert "a broker could not write 5 lines" in shown


def test_changes_and_attempts_are_one_audit(tmp_path: Path) -> None:
    """By the time of the lines, whichever files they stand in; lines left out are told whatever is asked for."""
    path = tmp_path / "audit.log"
    changes, attempts = writer(path), writer(Path(f"{path}.attempts"))
    for number in range(60):
        (attempts if number % 3 else changes).add(
            change(number, result="NONE" if number % 3 == 0 else "INVALID_CONFIG")
        )
    assert numbers(tail(path, "-o", "json", "-n", "50").stdout) == list(range(10, 60))
    attempts.add(audit_line(1_700_000_001_000, "left_out", {"what": "logins", "lines": 7, "principal": ""}))
    shown = tail(path, "-n", "1", "--principal", "User:nobody").stdout
    assert shown.endswith("7 logins have no line: they came too fast\n")
    both = AuditPair(str(path))
    both.begin_at_end()
    for number in range(60, 64):
        (attempts if number % 2 else changes).add(change(number))
    assert [json.loads(raw.text)["what"] for raw in both.poll(0)] == [f"topic {number}" for number in range(60, 64)]
    both.close()


def test_attempts_may_come_later(tmp_path: Path) -> None:
    """An older build wrote one file: it is read, and the other one once there is one."""
    path = tmp_path / "audit.log"
    writer(path).add(change(1))
    both = AuditPair(str(path))
    assert [raw.text for raw in both.newest(9, lambda _: True)] == [change(1).encode()]
    both.begin_at_end()
    writer(Path(f"{path}.attempts")).add(change(2))
    assert [raw.text for raw in both.poll(0)] == [change(2).encode()]
    both.close()


def test_names_do_nothing_to_a_terminal(tmp_path: Path) -> None:
    """A client may call itself what it likes."""
    path = tmp_path / "audit.log"
    writer(path).add(change(1, "User:\x1b[2J\n\u202eжук\ud800"))
    shown = tail(path).stdout
    assert "User:\\x1b[2J\\n\\u202eжук\\ud800" in shown
    assert tail(path, "-o", "json").stdout.isascii()


def test_lines_that_cannot_be_read_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each, with its beginning; what can be read is shown. A line of any length takes bounded memory."""
    monkeypatch.setattr(audit_sources, "LINE_BYTES_MAX", 1_000)
    monkeypatch.setattr("strandline.cli.audit.LINE_BYTES_MAX", 1_000)
    monkeypatch.setattr(audit_sources, "BLOCK_BYTES", 128)
    path = tmp_path / "audit.log"
    bad = [b"not \x1bJSON", b"[1]", b'{"event": "change"}', b"\xff" * 30, b"[" * 900, b'"' + b"x" * 5_000 + b'"']
    path.write_bytes(b"\n".join([change(1).encode(), *bad, b"", change(2).encode(), b'{"half']))
    told = tail(path, "-o", "json", expect=1)
    assert numbers(told.stdout) == [1, 2]
    said = told.stderr
    assert said.count("no line of an audit") == len(bad)
    assert "not \\x1bJSON" in said
    assert "longer than" in said
    assert "its last line has no end yet (6 bytes)" in said
    assert said.endswith("Error: 6 lines could not be read\n")
    files = AuditFiles(str(path))
    files.begin_at_end()
    with path.open("ab") as more:
        more.write(b"\n" + b"y" * 5_000 + b"\n" + change(3).encode() + b"\n")
    got = [raw.text for _ in range(60) for raw in files.poll(0)]
    assert (got[0], len(got[1]) > 1_000, got[2]) == (b'{"half', True, change(3).encode())


@pytest.mark.parametrize("seed", range(2))
def test_no_line_is_missed_while_files_rotate(tmp_path: Path, seed: int) -> None:
    """However many files were begun since the last look."""
    rng = random.Random(seed)
    path = tmp_path / "audit.log"
    file = writer(path, max_bytes=1024)
    file.add(change(0))
    files = AuditFiles(str(path))
    files.begin_at_end()
    written, got = 1, [0]
    while written < 200:
        for _ in range(rng.choice((0, 1, 3, 40))):
            file.add(change(written))
            written += 1
        for _ in range(rng.choice((0, 1, 3))):
            got += [json.loads(raw.text)["what"].rpartition(" ")[2] for raw in files.poll(0)]
    for _ in range(300):
        got += [json.loads(raw.text)["what"].rpartition(" ")[2] for raw in files.poll(0)]
    assert list(map(int, got)) == list(range(written))


def test_lines_that_are_gone_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Files removed before they were read; a file cut by something else."""
    path = tmp_path / "audit.log"
    file = writer(path, max_bytes=1024, files=2)
    file.add(change(0))
    files = AuditFiles(str(path))
    files.begin_at_end()
    for number in range(1, 100):
        file.add(change(number))
    got = [raw for _ in range(30) for raw in files.poll(0)]
    assert json.loads(got[-1].text)["what"] == "topic 99"
    assert "lines of files between it and this one may be missing" in capsys.readouterr().err
    with path.open("r+b") as cut:
        cut.truncate(0)
    file.add(change(100))
    [again] = [raw for _ in range(3) for raw in files.poll(0)]
    assert json.loads(again.text)["what"] == "topic 100"
    assert "it was cut by something else" in capsys.readouterr().err


def test_follow_until_ctrl_c(tmp_path: Path) -> None:
    """The command itself, over rotations; exit code 130 and not a word."""
    path = tmp_path / "audit.log"
    file = writer(path, max_bytes=1024)
    for number in range(5):
        file.add(change(number))
    words = ["audit", "tail", "--file", str(path), "--follow", "-n", "2", "-o", "json", "--principal", "User:me"]
    with subprocess.Popen(
        [sys.executable, "-m", "strandline.cli.main", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        seen = numbers("".join(process.stdout.readline() for _ in range(2)))
        for number in range(5, 60):
            file.add(change(number, "User:other" if number % 5 == 0 else "User:me"))
        expected = [number for number in range(3, 60) if number < 5 or number % 5]
        seen += numbers("".join(process.stdout.readline() for _ in range(len(expected) - 2)))
        assert seen == expected
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert (process.stdout.read(), process.stderr.read()) == ("", "")
