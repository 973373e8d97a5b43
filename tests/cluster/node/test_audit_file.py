"""The file of the audit: what stands in it, who may read it, how large it grows, and what if it cannot be written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from tests.cluster.node.secure_node import at
from tests.cluster.node.test_acls import client_of, run

from strandline.client import NewTopic
from strandline.client.aio import Admin
from strandline.cluster.node.audit_trail import AuditFile, AuditTrail
from strandline.cluster.node.node import Node
from strandline.proto.believed import BelievedClock
from strandline.proto.errors import ConfigError, KafkaError
from strandline.proto.system import SystemClock


def test_changes_and_denials_of_a_node_stand_in_its_file(tmp_path: Path) -> None:
    """One line of JSON each, there before the client has its answer."""
    path = tmp_path / "audit.log"

    async def body(node: Node) -> None:
        async with Admin(at(node, "SSL"), **client_of("admin")) as admin, Admin(at(node, "PLAINTEXT")) as nobody:
            await admin.create_topics([NewTopic("t", 1, 1)])
            with pytest.raises(KafkaError):
                await nobody.describe_acls()
        [change] = (json.loads(line) for line in path.read_text().splitlines())
        [denied] = (json.loads(line) for line in Path(f"{path}.attempts").read_text().splitlines())
        where = {"host": "127.0.0.1", "listener": "SSL", "client_id": change["client_id"]}
        what = {"principal": "User:admin", "api": "CreateTopics", "what": "topic t", "result": "NONE"}
        assert change == {"event": "change", "timestamp": change["timestamp"], **where, **what}
        assert (denied["event"], denied["principal"]) == ("denied", "User:ANONYMOUS")
        assert (denied["api"], denied["operation"], denied["resource"]) == ("DescribeAcls", "DESCRIBE", "kafka-cluster")
        assert change["timestamp"].endswith("+00:00")

    run(tmp_path / "data", body, audit_log_path=str(path))


def test_no_login_makes_a_change_go(tmp_path: Path) -> None:
    """Rule A28: the files of logins, refusals and changes that failed turn over, those of changes do not."""
    path = tmp_path / "audit.log"
    limits = {"max_bytes": 2000, "files": 2}
    clock = SystemClock()
    attempts = AuditFile(f"{path}.attempts", **limits, clock=clock)
    trail = AuditTrail(BelievedClock(clock), AuditFile(str(path), **limits, clock=clock), attempts, None)
    trail.write("change", {"principal": "User:me", "what": "topic mine", "result": "NONE"})
    for number in range(1000):
        trail.write("login", {"principal": "User:eve", "result": "NONE"})
        trail.write("denied", {"principal": "User:eve", "resource": f"t{number}"})
        trail.write("change", {"principal": "User:eve", "what": "topic none", "result": "UNKNOWN_TOPIC_OR_PARTITION"})
        trail.write("left_out", {"principal": "", "what": "logins", "lines": 5})
    trail.close()
    [line] = path.read_text().splitlines()
    assert json.loads(line)["what"] == "topic mine"
    assert sorted(one.name for one in tmp_path.iterdir()) == [
        *("audit.log", "audit.log.attempts", "audit.log.attempts.1")
    ]


def test_a_file_that_cannot_be_opened_stops_the_start(tmp_path: Path) -> None:
    async def body(node: Node) -> None:
        raise AssertionError("it started")

    with pytest.raises(ConfigError, match=r"audit\.log\.path"):
        run(tmp_path, body, audit_log_path=str(tmp_path / "missing" / "audit.log"))


def test_two_nodes_do_not_write_one_file(tmp_path: Path) -> None:
    """The rotation of one would take the lines of the other; the file of a node that has ended is free."""
    path = str(tmp_path / "audit.log")
    first = AuditFile(path, max_bytes=200, files=3, clock=SystemClock())
    for number in range(20):
        first.add(f"line {number} of the first, so that it rotates")
    with pytest.raises(ConfigError, match=r"audit\.log\.path.*this node alone; another process writes it"):
        AuditFile(path, max_bytes=200, files=3, clock=SystemClock())
    assert first.dropped == 0
    first.close()
    AuditFile(path, max_bytes=200, files=3, clock=SystemClock()).close()


def test_it_is_as_large_as_the_settings_say(tmp_path: Path) -> None:
    """The oldest lines go; the file is for its user alone; a restart goes on in it."""
    path = tmp_path / "audit.log"
    for _ in range(2):
        file = AuditFile(str(path), max_bytes=2000, files=3, clock=SystemClock())
        for number in range(100):
            file.add(json.dumps({"what": f"topic {number}"}))
        file.close()
    files = sorted(tmp_path.iterdir())
    assert [one.name for one in files] == ["audit.log", "audit.log.1", "audit.log.2"]
    assert all(one.stat().st_size <= 2000 and one.stat().st_mode & 0o077 == 0 for one in files)
    assert json.loads(path.read_text().splitlines()[-1])["what"] == "topic 99"


def test_lines_that_cannot_be_written_are_told() -> None:
    """Once in a while, with their number; the request goes on."""
    file = AuditFile("/dev/full", max_bytes=2000, files=2, clock=SystemClock())
    with capture_logs() as logs:
        for _ in range(5):
            file.add("a line")
    assert file.dropped == 5
    assert [line["event"] for line in logs] == ["audit lines could not be written"]
