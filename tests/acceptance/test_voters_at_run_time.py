"""Controllers that come and go, typed as operators do (row S89, rules A36 to A38), on real processes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from click.testing import CliRunner, Result
from interop.driver import ClientError
from interop.tools import KafkaTools

from strandline.cli.main import main
from strandline.client import Admin, NewTopic
from strandline.log.checkpoints import encode_id
from tests.acceptance.foreign import kafka_tools
from tests.acceptance.helpers import eventually
from tests.ports import free_ports


class Machines:
    """Four machines of which each can be formatted, started and killed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ports = free_ports(8)
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        for node in (1, 2, 3, 4):
            servers = f"127.0.0.1:{self.ports[4]},127.0.0.1:{self.ports[5]}"
            lines = (
                f"node.id={node}",
                "process.roles=broker,controller",
                f"log.dirs={path}/data-{node}",
                f"listeners=PLAINTEXT://127.0.0.1:{self.ports[node - 1]},INTERNAL://127.0.0.1:{self.ports[node + 3]}",
                "controller.listener.names=INTERNAL",  # Kafka's tools read it
                f"controller.quorum.bootstrap.servers={servers}",
            )
            self.file(node).write_text("\n".join(lines) + "\n")

    def file(self, node: int) -> Path:
        return self.path / f"node-{node}.properties"

    def format(self, node: int, *words: str) -> None:
        done("format", "--config", str(self.file(node)), "--cluster-id", "come-and-go", *words)

    def start(self, node: int) -> None:
        log = (self.path / f"log-{node}").open("ab")
        command = [sys.executable, "-m", "strandline.cluster.node.run_node", str(self.file(node))]
        self.processes[node] = subprocess.Popen(command, stdout=log, stderr=log)
        log.close()

    def kill(self, node: int) -> None:
        process = self.processes.pop(node)
        process.kill()
        process.wait()

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{self.ports[node - 1]}" for node in sorted(self.processes))

    def quorum(self, *words: str) -> Result:
        return run("quorum", *words, "-b", self.bootstrap)

    def described(self) -> dict[str, Any]:
        told = self.quorum("describe", "-o", "json")
        assert told.exit_code == 0, told.output
        described: dict[str, Any] = json.loads(told.stdout)
        return described

    def voters(self) -> list[int]:
        return [member["node_id"] for member in self.described()["voters"]]

    def leader(self) -> int:
        return int(self.described()["leader_id"])

    def commits(self, topic: str) -> None:
        """The quorum takes a change."""
        with Admin(self.bootstrap) as admin:
            admin.create_topics([NewTopic(topic, partitions=1, replication_factor=1)])


def run(*words: str) -> Result:
    result = CliRunner().invoke(main, words, catch_exceptions=False)
    assert "Traceback" not in result.output
    return result


def done(*words: str) -> str:
    result = run(*words)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    machines = Machines(tmp_path)
    try:
        yield machines
    finally:
        for node in list(machines.processes):
            machines.kill(node)


def test_one_becomes_three_one_is_replaced_and_one_is_left(machines: Machines) -> None:
    """Standalone to three; the machine of one is gone and another takes its vote, without a restart of the others; the
    leader is removed; then back to one. Each change is typed, and a dry run changes nothing."""
    machines.format(1, "--standalone")
    machines.start(1)
    eventually(lambda: machines.voters() == [1])
    for node in (2, 3):
        machines.format(node, "--no-initial-controllers")
        machines.start(node)
        added = machines.quorum("add", str(node))
        assert added.exit_code == 0, added.output
        assert f"Node {node} votes" in added.output
    assert machines.voters() == [1, 2, 3]
    again = machines.quorum("add", "3")
    assert (again.exit_code, "votes already" in again.output) == (2, True)
    machines.commits("of-three")

    processes = {node: process.pid for node, process in machines.processes.items() if node != 3}
    machines.kill(3)
    machines.format(4, "--no-initial-controllers")
    machines.start(4)
    eventually(lambda: machines.quorum("replace", "3", "4", "--dry-run").exit_code == 0)
    assert machines.voters() == [1, 2, 3]
    replaced = machines.quorum("replace", "3", "4", "-o", "json")
    assert replaced.exit_code == 0, replaced.output
    assert json.loads(replaced.stdout)["changed"] is True
    assert machines.voters() == [1, 2, 4]
    assert {node: machines.processes[node].pid for node in processes} == processes
    machines.commits("of-another-three")

    leader = machines.leader()
    removed = machines.quorum("remove", str(leader))
    assert removed.exit_code == 0, removed.output
    left = eventually(lambda: (now := machines.voters()) and leader not in now and now)
    machines.commits("without-the-leader")
    follower = next(node for node in left if node != machines.leader())
    assert machines.quorum("remove", str(follower)).exit_code == 0
    [last] = eventually(lambda: len(now := machines.voters()) == 1 and now)
    refused = machines.quorum("remove", str(last))
    assert (refused.exit_code, "only voter" in refused.output) == (1, True)
    for node in [node for node in machines.processes if node != last]:
        machines.kill(node)
    machines.commits("of-one")


def by_kafkas_tool(tools: KafkaTools, *words: str) -> str:
    return tools.run("kafka-metadata-quorum", *words)


def test_controllers_come_and_go_by_kafka_metadata_quorum(machines: Machines) -> None:
    """Row S89 by Kafka's own tool, unmodified: it describes the quorum, adds controllers by the files that they run
    with, and removes them, the leader too. A dry run and a refusal change nothing."""
    machines.format(1, "--standalone")
    for node in (2, 3, 4):
        machines.format(node, "--no-initial-controllers")
    for node in (1, 2, 3):
        machines.start(node)
    eventually(lambda: len(machines.described()["observers"]) == 2)
    with closing(kafka_tools(machines.bootstrap)) as tools:
        assert re.search(r"CurrentVoters: +\[\{\"id\": 1, [^{]*\]\n", by_kafkas_tool(tools, "describe", "--status"))
        for node in (2, 3):
            add = ("--command-config", str(machines.file(node)), "add-controller")
            before = machines.voters()
            assert f"DRY RUN of adding controller {node} " in by_kafkas_tool(tools, *add, "--dry-run")
            assert machines.voters() == before
            listener = f"INTERNAL://127.0.0.1:{machines.ports[node + 3]}"
            added = by_kafkas_tool(tools, *add)
            assert re.search(rf"Added controller {node} with directory id \S+ and endpoints: {listener}", added)
            assert machines.voters() == [*before, node]
        with pytest.raises(ClientError, match="does not fetch"):
            by_kafkas_tool(tools, "--command-config", str(machines.file(4)), "add-controller")
        status = by_kafkas_tool(tools, "describe", "--status")
        for node in (1, 2, 3):
            assert f'"endpoints": ["INTERNAL://127.0.0.1:{machines.ports[node + 3]}"]' in status
        replication = by_kafkas_tool(tools, "describe", "--replication")
        assert sorted(re.findall(r"(Leader|Follower|Observer)\s*$", replication, re.M)) == ["Follower"] * 2 + ["Leader"]
        machines.commits("of-three")

        leader = machines.leader()
        ids = {one["node_id"]: encode_id(UUID(one["directory_id"])) for one in machines.described()["voters"]}
        other = next(node for node in ids if node != leader)
        with pytest.raises(ClientError, match="VoterNotFound"):
            by_kafkas_tool(tools, "remove-controller", "-i", str(leader), "-d", ids[other])
        remove = ("remove-controller", "-i", str(leader), "-d", ids[leader])
        assert "DRY RUN of removing" in by_kafkas_tool(tools, *remove, "--dry-run")
        assert machines.voters() == [1, 2, 3]
        assert f"Removed  KRaft controller {leader} with directory id {ids[leader]}" in by_kafkas_tool(tools, *remove)
        eventually(lambda: machines.voters() == [node for node in ids if node != leader])
        machines.commits("without-the-leader")
