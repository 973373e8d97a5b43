"""The floor under a lone record keeps the promise that it is measured for: an ack means three copies, each synced."""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from bench.__main__ import SYSTEMS, contenders_of, show
from bench.clusters import StrandlineCluster
from bench.fetched import Unavailable
from bench.floor import WAYS, Client, floor_figures, floor_nodes
from bench.floor_node import Way
from bench.measures import RATES

RECORDS = 5
SLOW_US = 20_000


class Floor(NamedTuple):
    """Running nodes, by number their process ids, their files below `root`, and their client."""

    way: Way
    root: Path
    client: Client
    pids: dict[int, int]


@pytest.fixture(scope="module", params=WAYS)
def floor(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Floor]:
    """Three nodes of each way in turn; both tests leave them running."""
    root = tmp_path_factory.mktemp("floor")
    with floor_nodes(WAYS[request.param], root) as (client, pids):
        yield Floor(WAYS[request.param], root, client, pids)


def test_an_ack_waits_for_both_followers(floor: Floor) -> None:
    """Neither is a majority enough, nor does one of them lack anything that was acked."""
    client, sent = floor.client, b""
    for follower in (2, 3):
        os.kill(floor.pids[follower], signal.SIGSTOP)
        sent += os.urandom(1024)
        end = client.send(sent[-1024:])
        answers = select.poll()  # unlike select() it takes descriptors above 1023
        answers.register(client.socket, select.POLLIN)
        assert not answers.poll(200)
        os.kill(floor.pids[follower], signal.SIGCONT)
        assert client.ack() == end
    for node in floor.pids:
        stored = (floor.root / str(node)).read_bytes()
        assert stored[end - len(sent) : end] == sent
        assert len(stored) > end, "allocated ahead"
        assert not any(stored[end:])


def test_an_ack_waits_for_the_sync_of_every_node(floor: Floor) -> None:
    """The syncs of one node after the other are made slow; without a sync there is none."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    client, unsynced = floor.client, floor.way.sync == "none"
    for node, pid in floor.pids.items():
        trace = floor.root / f"trace-{node}"
        with traced(pid, trace, "-e", "trace=fdatasync", "-e", f"inject=fdatasync:delay_exit={SLOW_US}"):
            for _ in range(RECORDS):
                began = time.perf_counter()
                assert client.send(bytes(1024)) == client.ack()
                assert unsynced or time.perf_counter() - began >= SLOW_US / 1e6
        assert trace.read_text().count("fdatasync(") == (0 if unsynced else RECORDS)


@contextmanager
def traced(pid: int, trace: Path, *options: str) -> Iterator[None]:
    """strace looks at every thread of the process. Skips where it may not."""
    command = ["strace", "-f", *options, "-o", str(trace), "-p", str(pid)]
    tracer = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert tracer.stderr is not None
        said = tracer.stderr.readline()
        if "attached" not in said:
            pytest.skip(f"strace may not look at the nodes: {said.strip()}")
        yield
    finally:
        tracer.send_signal(signal.SIGINT)
        tracer.communicate(timeout=10)


@pytest.mark.parametrize("name", WAYS)
def test_the_figures_are_those_of_a_lone_record(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under the names that Strandline's have, for they stand in one row."""
    monkeypatch.setattr("bench.floor.WARM_UP_S", 0.05)
    figures = floor_figures(WAYS[name], {"latency"}, 0.01, lambda said: None).figures
    for load in (*(f"ack 1 KB at {rate}/s" for rate in RATES), "ack 1 KB, one after the other"):
        assert 0 < figures.pop(f"{load}, p50 ms") <= figures.pop(f"{load}, p99 ms")
        assert figures.pop(f"{load}, CPU a node, ms a record") >= 0
    alone = [f"fdatasync of 1 KB, one after the other, p{share} ms" for share in (50, 99)]
    assert list(figures) == ([] if WAYS[name].sync == "none" else alone)


def test_it_is_measured_where_it_is_asked_for() -> None:
    """By its name, and beside the latency of the others alone."""
    assert "floor" not in SYSTEMS
    found = contenders_of(["floor"], "none", {"latency"}, lambda said: None)
    assert list(found) == [StrandlineCluster.name, *WAYS]
    with pytest.raises(Unavailable, match="--only latency"):
        found["floor: sockets"]({"produce"}, 1.0, lambda said: None)


def test_a_row_that_only_a_peer_has_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = {"both": 3.0}, {"both": 2.0, "its own": 7.0}
    show({"ours": first, "theirs": second}, {"ours": [first], "theirs": [second]}, "none")
    shown = capsys.readouterr().out
    assert re.search(r"both +│ +3.00 │ +2.00 │ +1.50 │", shown)
    assert re.search(r"its own +│ +│ +7.00 │ +│", shown)
