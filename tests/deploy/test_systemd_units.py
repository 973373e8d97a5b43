"""The units under systemd: what they start, that systemd takes them, and several nodes of one template on a machine."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest

from strandline.client import Admin, Consumer, NewTopic, Producer
from strandline.cluster.node.config import NodeConfig
from tests.ports import free_ports

DEPLOY = Path(__file__).parent.parent.parent / "deploy"
COMMAND = [sys.executable, "-m", "strandline.cli.main"]

TEMPLATE = "strandline@.service"

FILTER = " ".join(re.findall(r"SystemCallFilter=.*", (DEPLOY / TEMPLATE).read_text()))
"""Configparser keeps one line of each name."""


def service(name: str, *, node: int = 0, machine: str = "") -> dict[str, str]:
    """The unit's section [Service], as systemd fills it in for an instance on a machine."""
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    text = (DEPLOY / name).read_text().replace("\\\n", " ").replace("%i", str(node)).replace("%H", machine)
    unit.read_string(text)
    return dict(unit["Service"])


def overrides(words: list[str]) -> dict[str, str]:
    """What -X gives."""
    given = [words[at + 1] for at, word in enumerate(words) if word == "-X"]
    return dict(item.split("=", 1) for item in given)


def test_the_unit_starts_a_node() -> None:
    unit = service("strandline.service")
    words = shlex.split(unit["ExecStart"])
    assert Path(words[0]).name == "strandline"
    assert words[1:3] == ["node", "--config"]
    assert int(unit["TimeoutStopSec"]) * 1000 > NodeConfig({"node.id": "1"}).controlled_shutdown_timeout_ms
    settings = NodeConfig.load(str(DEPLOY / "node.properties.example"))
    assert settings.log_dirs == (f"/var/lib/{unit['StateDirectory']}/data",)


def test_an_instance_of_the_template_is_a_node_of_its_machine() -> None:
    unit = service(TEMPLATE, node=12, machine="log-1")
    words = shlex.split(unit["ExecStart"])
    assert words[1:4] == ["node", "--config", "/etc/strandline/12.properties"]
    settings = NodeConfig.load(str(DEPLOY / "node@.properties.example"), overrides(words))
    assert settings.node_id == 12
    assert settings.broker_rack == "log-1"
    assert settings.log_dirs == (f"/var/lib/{unit['StateDirectory']}/data",)
    assert unit["WorkingDirectory"] == f"/var/lib/{unit['StateDirectory']}"


def test_the_template_is_as_strict_as_the_unit() -> None:
    one, many = service("strandline.service"), service(TEMPLATE)
    differ = {key for key in one.keys() | many.keys() if one.get(key) != many.get(key)}
    assert differ == {"ExecStart", "StateDirectory", "WorkingDirectory"}


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
@pytest.mark.parametrize("name", ["strandline.service", TEMPLATE])
def test_systemd_takes_the_unit(name: str, tmp_path: Path) -> None:
    """The command has to be there for it."""
    unit = tmp_path / name.replace("@", "@11")
    unit.write_text((DEPLOY / name).read_text().replace("/opt/strandline/bin/strandline", "/bin/true"))
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    judged = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", unit],
        capture_output=True,
        text=True,
        check=False,
    )
    score = re.search(r"Overall exposure level for \S+: ([\d.]+)", judged.stdout)
    if score is None:
        pytest.skip(f"this systemd judges no unit that is a file: {judged.stderr.strip()}")
    assert float(score[1]) <= 1.5, judged.stdout


def _call_sets() -> dict[str, set[str]]:
    """The sets of system calls that systemd knows by name, each with those that it names."""
    listing = subprocess.run(
        ["systemd-analyze", "syscall-filter", "--no-pager"], capture_output=True, text=True, check=True
    )
    named: dict[str, list[str]] = {}
    for line in listing.stdout.splitlines():
        if line.startswith("@"):
            members = named.setdefault(line.strip(), [])
        elif line.strip() and not line.strip().startswith("#"):
            members.append(line.strip())

    def calls(name: str) -> set[str]:
        return {call for each in named[name] for call in (calls(each) if each.startswith("@") else {each})}

    return {name: calls(name) for name in named}


@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None or shutil.which("strace") is None, reason="systemd or strace is missing"
)
def test_a_node_makes_no_call_that_the_unit_denies(tmp_path: Path) -> None:
    """Start, a topic, records written, read and deleted, and a controlled stop, each traced."""
    client, internal = free_ports(2)
    given = {
        "node.id": "1",
        "log.dirs": str(tmp_path / "data"),
        "listeners": f"PLAINTEXT://127.0.0.1:{client},INTERNAL://127.0.0.1:{internal}",
        "controller.quorum.voters": f"1@127.0.0.1:{internal}",
    }
    words = [word for name, value in given.items() for word in ("-X", f"{name}={value}")]
    subprocess.run([*COMMAND, "format", "--cluster-id", "traced", *words], check=True, capture_output=True)
    trace = tmp_path / "trace"
    traced = ["strace", "-f", "-qq", "-o", str(trace), *COMMAND, "node", *words]
    with started(traced, tmp_path / "log", stop=True), Admin(f"127.0.0.1:{client}") as admin:
        admin.create_topics([NewTopic("t", 1, 1)])
        with Producer(f"127.0.0.1:{client}") as producer:
            producer.send("t", b"x" * 1000).result()
        with Consumer(f"127.0.0.1:{client}", auto_offset_reset="earliest") as consumer:
            consumer.assign([("t", 0)])
            assert consumer.poll(10)
        admin.delete_topics(["t"])
    used = set(re.findall(r"^\d+ +([a-z_0-9]+)\(", trace.read_text(), re.MULTILINE))
    assert len(used) > 40
    sets = _call_sets()
    allowed, denied = [part.split() for part in FILTER.split("SystemCallFilter=")[1:]]
    assert used <= set().union(*(sets[name] for name in allowed))
    assert not used & set().union(*(sets[name] for name in [denied[0].lstrip("~"), *denied[1:]]))


@contextmanager
def started(words: list[str], log: Path, *, stop: bool = False) -> Iterator[None]:
    """A node that said it is ready; killed at the end, or stopped as systemd stops it."""
    with log.open("w") as output:
        node = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=output, text=True)
    try:
        assert node.stdout is not None
        said = node.stdout.readline()
        assert said, log.read_text()
        assert json.loads(said)["event"] == "ready"
        yield
        if stop:
            psutil.Process(node.pid).children()[0].terminate()
            node.wait(30)
    finally:
        node.kill()
        node.communicate()


def test_copies_lie_on_two_machines_though_one_has_two_nodes(tmp_path: Path) -> None:
    """The commands of instances 11 and 12 on machine a and 21 on machine b, with files as in the example: no partition
    has both of its copies on a."""
    nodes = {11: "a", 12: "a", 21: "b"}
    ports = free_ports(3 * len(nodes))
    places = {node: ports[3 * at : 3 * at + 3] for at, node in enumerate(nodes)}
    example = (DEPLOY / "node@.properties.example").read_text()
    with ExitStack() as running:
        commands = {}
        for node, machine in nodes.items():
            client, internal, http = places[node]
            text = example.replace("//0.0.0.0:", "//127.0.0.1:").replace("//log-1.example:", "//127.0.0.1:")
            text = text.replace(":9093", f":{client}").replace(":19093", f":{internal}").replace(":8093", f":{http}")
            text = text.replace("11@log-1.example:19092,21@log-2.example:19092,31@log-3.example:19092", "11@VOTER")
            text = text.replace("VOTER", f"127.0.0.1:{places[11][1]}")
            if node == 11:
                text = text.replace("process.roles=broker\n", "process.roles=broker,controller\n")
            (tmp_path / f"{node}.properties").write_text(text)
            command = service(TEMPLATE, node=node, machine=machine)["ExecStart"]
            command = command.replace("/etc/strandline", str(tmp_path)).replace("/var/lib/strandline", str(tmp_path))
            words = shlex.split(command)[2:]
            format_words = [*COMMAND, "format", "--cluster-id", "several", *words]
            subprocess.run(format_words, check=True, capture_output=True)
            commands[node] = [*COMMAND, "node", *words]
        for node, start in commands.items():
            running.enter_context(started(start, tmp_path / f"{node}.log"))
        with Admin(f"127.0.0.1:{places[11][0]}") as admin:
            admin.create_topics([NewTopic("spread", 8, 2)])
            [topic] = admin.describe_topics(["spread"])
            placed = [{nodes[replica] for replica in part.replicas} for part in topic.partitions]
            used = {replica for part in topic.partitions for replica in part.replicas}
    assert placed == [{"a", "b"}] * 8
    assert used == set(nodes)
