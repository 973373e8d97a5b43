"""How long acks stop when nodes are killed or paused: `python -m bench.gaps`.

Three combined nodes as `strandline dev` starts them, a topic of replication 3 and min.insync.replicas 2, and a producer
that sends a record every 20 ms with acks=all to one partition. A node is struck: SIGKILL, or SIGSTOP, which leaves its
connections open and silent. It stays so until acks go on. The gap is the longest time between two acks from then on.
In the end everything is read back: what was acknowledged and is not there is lost, and the exit code is 1.

`--busy N` runs so many endless loops beside the nodes. `--calm S` strikes nothing for so long first, and counts how
many brokers are fenced all the same, and how often the controller moves: none must be, and it need not.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from strandline.client import Ack, Admin, Consumer, NewTopic, Producer
from strandline.cluster.node.dev import DevCluster
from strandline.proto.errors import StrandlineError

TOPIC = "gaps"
PARTITIONS = 6
SEND_EVERY_S = 0.02
GIVEN_UP_S = 60.0
WHOLE_S = 90.0
LOOPS = "while True: pass"

STRIKES = {
    "kill": ("leader", "leader that is the active controller", "follower", "follower that is the active controller"),
    "pause": ("leader", "leader that is the active controller", "follower", "follower that is the active controller"),
    "kill and start": ("two of three", "all three"),
}


@dataclass(frozen=True)
class Gap:
    """What one strike cost."""

    strike: str
    node: str
    seconds: float


class Load:
    """Sends to one partition from a thread of its own, and remembers when acks came and for what."""

    def __init__(self, bootstrap: str, partition: int, first: int) -> None:
        self.acked: list[int] = []
        self.times: list[float] = []
        self._partition = partition
        self._numbers = itertools.count(first)
        self._ended = threading.Event()
        # What a client adds of its own is kept small: it looks for a new leader four times a second.
        self._producer = Producer(bootstrap, request_timeout_ms=1000, metadata_max_age_ms=250, linger_ms=0)
        self._thread = threading.Thread(target=self._send)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._ended.set()
        self._thread.join()
        self._producer.flush(GIVEN_UP_S)
        self._producer.close()

    def wait(self, count: int) -> None:
        """Return once so many more acks have come. Raises TimeoutError."""
        wanted, deadline = len(self.times) + count, time.monotonic() + GIVEN_UP_S
        while len(self.times) < wanted:
            if time.monotonic() > deadline:
                raise TimeoutError(f"no acks within {GIVEN_UP_S:g} s")
            time.sleep(0.01)

    def gap_since(self, since: float) -> float:
        """The longest time without an ack since then."""
        times = [since, *(each for each in self.times if each > since)]
        return max((later - earlier for earlier, later in itertools.pairwise(times)), default=0.0)

    def _send(self) -> None:
        while not self._ended.wait(SEND_EVERY_S):
            number = next(self._numbers)
            sent = self._producer.send(TOPIC, str(number).encode(), partition=self._partition)
            sent.add_done_callback(lambda future, number=number: self._acked(future, number))

    def _acked(self, future: Future[Ack], number: int) -> None:
        if future.exception() is None:
            self.times.append(time.monotonic())
            self.acked.append(number)


def _eventually(cluster: DevCluster, whole: bool) -> tuple[int, dict[int, int]]:
    """The active controller and each partition's leader, once nothing is missing. Raises TimeoutError."""
    deadline = time.monotonic() + WHOLE_S
    while time.monotonic() < deadline:
        try:
            with Admin(cluster.responsive, request_timeout_ms=2000, default_api_timeout_ms=3000) as admin:
                controller = admin.describe_quorum().leader_id
                partitions = admin.describe_topics([TOPIC])[0].partitions
        except StrandlineError:
            continue
        leaders = {number: one.leader for number, one in enumerate(partitions) if one.leader is not None}
        in_sync = all(set(one.isr) == set(one.replicas) for one in partitions)
        spread = len(set(leaders.values())) == len(cluster.broker_ids)
        if controller is not None and len(leaders) == PARTITIONS and (not whole or (in_sync and spread)):
            return controller, leaders
        time.sleep(0.2)
    raise TimeoutError(f"the cluster was not whole within {WHOLE_S:g} s")


def _victims(cluster: DevCluster, node: str, controller: int, leader: int) -> list[int]:
    others = [each for each in cluster.broker_ids if each != leader]
    if node == "all three":
        return list(cluster.broker_ids)
    if node == "two of three":
        return [leader, others[0]]
    if node.startswith("leader"):
        return [leader]
    return [controller] if "controller" in node else [each for each in others if each != controller][:1]


def strike(cluster: DevCluster, kind: str, node: str, acked: list[int]) -> Gap:
    """Strike once, wait for acks, mend, and wait until the cluster is whole."""
    controller, leaders = _eventually(cluster, whole=True)
    wants_controller = node == "leader that is the active controller"
    partition = next(number for number, each in leaders.items() if (each == controller) is wants_controller)
    with Load(cluster.bootstrap, partition, len(acked) * 10) as load:
        load.wait(50)
        victims = _victims(cluster, node, controller, leaders[partition])
        began = time.monotonic()
        for victim in victims:
            if kind == "pause":
                cluster.pause(victim)
            else:
                cluster.kill(victim)
        if kind == "kill and start":
            for victim in victims:
                cluster.start_node(victim, wait=False)
        time.sleep(1.5)
        load.wait(100)
        seconds = load.gap_since(began)
        if kind == "pause":
            cluster.resume(victims[0])
        elif kind == "kill":
            cluster.start_node(victims[0])
        else:
            cluster.wait_ready(victims)
        _eventually(cluster, whole=False)
    acked += load.acked
    return Gap(kind, node, round(seconds, 2))


def _lost(cluster: DevCluster, acked: list[int]) -> int:
    """How many of these are in no partition."""
    found: set[int] = set()
    with Consumer(cluster.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([(TOPIC, number) for number in range(PARTITIONS)])
        while batch := consumer.poll(3.0):
            found.update(int(record.value or b"-1") for record in batch)
    return len(set(acked) - found)


def _logged(cluster: DevCluster, words: str) -> int:
    return sum(Path(cluster.log_path(node)).read_text().count(words) for node in cluster.broker_ids)


@click.command()
@click.option("--rounds", default=3, show_default=True, help="How often each strike is made.")
@click.option("--only", default="", help="Strikes whose names have this in them: kill, pause, 'pause leader', all.")
@click.option("--busy", default=0, show_default=True, help="Endless loops beside the nodes.")
@click.option(
    "--nice", default=10, show_default=True, help="Of these loops; 0: the nodes get no more than each of them."
)
@click.option("--calm", default=0.0, show_default=True, help="So many seconds without a strike first.")
@click.option("--output", type=click.Choice(["table", "json"]), default="table")
def main(rounds: int, only: str, busy: int, nice: int, calm: float, output: str) -> None:
    """Strike, measure, read back."""
    wanted = [(kind, node) for kind, nodes in STRIKES.items() for node in nodes if only in f"{kind} {node}"]
    acked: list[int] = []
    gaps: list[Gap] = []
    with DevCluster() as cluster, ExitStack() as loops:
        for _ in range(busy):
            command = ["nice", "-n", str(nice), sys.executable, "-c", LOOPS]
            loops.callback(subprocess.Popen(command).kill)
        with Admin(cluster.bootstrap) as admin:
            admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3, configs={"min.insync.replicas": "2"})])
        if calm:
            _eventually(cluster, whole=True)
            with Load(cluster.bootstrap, 0, 0) as load:
                began = time.monotonic()
                time.sleep(calm)
                longest = load.gap_since(began)
            acked += load.acked
            click.echo(
                f"{calm:g} s without a strike, {busy} loops at nice {nice}, load {os.getloadavg()[0]:.1f}: "
                f"{_logged(cluster, 'a broker is gone')} brokers fenced, "
                f"{_logged(cluster, 'this node is the active controller')} active controllers since the start, "
                f"longest time without an ack {longest:.2f} s"
            )
        for _ in range(rounds):
            for kind, node in wanted:
                gaps.append(strike(cluster, kind, node, acked))
                click.echo(json.dumps(asdict(gaps[-1])), err=True)
        lost = _lost(cluster, acked)
    for kind, node in wanted:
        seconds = sorted(gap.seconds for gap in gaps if (gap.strike, gap.node) == (kind, node))
        row = {"strike": kind, "node": node, "times": len(seconds), "median_s": seconds[len(seconds) // 2]}
        row |= {"longest_s": seconds[-1]}
        click.echo(json.dumps(row) if output == "json" else f"{kind:15} {node:38} {seconds}")
    click.echo(f"{len(acked)} acknowledged, {lost} of them lost; load {os.getloadavg()[0]:.1f}")
    sys.exit(1 if lost else 0)


if __name__ == "__main__":
    main()
