"""`strandline doctor` on a cluster of real processes: whole, in an outage, and with settings that do nothing yet."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from strandline.cli.main import main
from strandline.cluster.node.dev import DevCluster

BOUND_S = 60.0
"""Far more than its own time limits, far less than the twenty seconds a broker that doctor used to need for ever."""


def strandline(*words: str) -> Result:
    return CliRunner().invoke(main, list(words), prog_name="strandline")


def doctor(bootstrap: str) -> tuple[int, list[dict[str, Any]]]:
    told = strandline("doctor", "-b", bootstrap, "-o", "json")
    return told.exit_code, json.loads(told.stdout)


@pytest.fixture(scope="module")
def whole(cluster: DevCluster) -> DevCluster:
    return cluster


def test_a_setting_without_effect_is_said_where_it_is_set(whole: DevCluster) -> None:
    """flush.ms is taken, as Kafka takes it, and nothing goes by it: the command, describe, doctor and the log of the
    broker say so. What asks for what is done anyway is no mistake."""
    where = ("-b", whole.bootstrap)
    idle = "flush.ms=10"
    told = strandline("topic", "create", "doctored", "-c", idle, "-c", "segment.ms=1000", *where)
    assert told.exit_code == 0, told.output
    assert f"warning: {idle} has no effect yet: flush.policy says" in told.stderr
    assert "segment.ms" not in told.stderr
    log = "".join(Path(whole.log_path(node)).read_text() for node in whole.node_ids)
    assert re.search(r"a setting without effect was set' topic='doctored' setting='flush.ms' value='10'", log)

    dry = strandline("topic", "create", "other", "-c", idle, "--dry-run", *where)
    assert f"{idle} has no effect yet" in dry.stderr
    described = strandline("topic", "describe", "doctored", *where).stdout
    assert f"{idle} (no effect yet)" in described
    shown = strandline("config", "describe", "topic", "doctored", *where).stdout
    assert "flush.policy says when records are synced" in " ".join(shown.split())

    code, found = doctor(whole.bootstrap)
    mine = [one for one in found if one["where"] == "topic doctored"]
    assert code == 1
    assert [(one["kind"], one["setting"]) for one in mine] == [("no effect", "flush.ms = 10")]

    usual = strandline("topic", "alter", "doctored", "-c", "flush.ms=9223372036854775807", *where)
    assert (usual.exit_code, usual.stderr) == (0, "")
    lasting = strandline("config", "alter", "topic", "doctored", "--set", "flush.ms=10", "-o", "json", *where)
    assert json.loads(lasting.stdout)["without_effect"] == {
        "flush.ms": "flush.policy says when records are synced, by default before each acknowledgement"
    }
    strandline("topic", "delete", "doctored", "--yes", *where)


@pytest.fixture
def outage() -> Iterator[DevCluster]:
    with DevCluster() as running:
        assert strandline("topic", "create", "orders", "-b", running.bootstrap).exit_code == 0
        yield running


def test_doctor_works_during_an_outage(outage: DevCluster) -> None:
    """One broker is killed: it is named as not reached, the others are judged, the topic's missing replica is told."""
    outage.kill(2)
    deadline = time.monotonic() + BOUND_S
    while True:
        code, found = doctor(outage.bootstrap)
        settings = {(one["where"], one["kind"]): one for one in found}
        assert code == 1
        assert ("broker 2", "unchecked") in settings
        if ("topic orders", "risk") in settings:
            break
        assert time.monotonic() < deadline
    unreached = settings["broker 2", "unchecked"]
    assert outage.client(2) in unreached["setting"]
    assert "refused" in unreached["setting"].lower()
    assert "settings" in unreached["loses"]
    text = strandline("doctor", "-b", outage.bootstrap).stdout
    assert "? broker 2: not reached" in text
    assert "2 not checked" in text, "the broker, and the transactions that it may coordinate"


def test_doctor_ends_though_a_broker_is_silent_and_the_quorum_gone(outage: DevCluster) -> None:
    """One paused, one killed: no majority. What answers is judged in bounded time, the quorum named as unknown."""
    outage.kill(3)
    outage.pause(2)
    deadline = time.monotonic() + BOUND_S
    unchecked: set[str] = set()
    while "quorum" not in unchecked:  # the leader that was may answer for a moment
        began = time.monotonic()
        assert began < deadline
        code, found = doctor(outage.client(1))
        assert time.monotonic() - began < BOUND_S
        unchecked = {one["where"] for one in found if one["kind"] == "unchecked"}
        assert code == 1
        assert {"broker 2", "broker 3"} <= unchecked
    outage.resume(2)
