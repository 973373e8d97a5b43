"""A node begins from the directory that has its metadata, wherever that stands in log.dirs (rule B29, schedule 95)."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from strandline.cluster.node.config import NodeConfig
from strandline.cluster.node.format import format_directory
from strandline.cluster.node.main_directory import INITIAL_CONTROLLERS, as_it_starts
from strandline.controller.quorum.state_file import PROMISE, Remembered, StateFile
from strandline.controller.raft.messages import OffsetAndEpoch
from strandline.controller.raft.ready import ElectionState
from strandline.log.checkpoints import META_PROPERTIES
from strandline.log.real_disk import RealDisk
from strandline.log.rewriting import AWAY
from strandline.proto.errors import ConfigError
from strandline.proto.ids import LeaderEpoch, Offset

DISK = RealDisk()


class Machine:
    """Directories of node 1, in the order that a test names."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.quorum = {"controller.quorum.voters": "1@127.0.0.1:2,2@127.0.0.1:3,3@127.0.0.1:4"}

    def config(self, *names: str, node: int = 1) -> NodeConfig:
        return NodeConfig(
            {
                "node.id": str(node),
                "log.dirs": ",".join(f"{self.root}/{name}" for name in names),
                "listeners": "PLAINTEXT://127.0.0.1:1,INTERNAL://127.0.0.1:2",
                **self.quorum,
            }
        )

    def format(self, *names: str) -> str:
        """The name of the main directory."""
        made = format_directory(DISK, self.config(*names), cluster_id="c", rng=random.Random(1), ignore_formatted=True)
        return Path(made.path).name

    def run(self, name: str, reach: int = 5) -> None:
        """What a controller that ran leaves there."""
        held = OffsetAndEpoch(Offset(reach), LeaderEpoch(2))
        StateFile(DISK, f"{self.root}/{name}", PROMISE).write(Remembered(ElectionState(2), held=held))

    def main(self, *names: str) -> str:
        """From which a start begins."""
        config = self.config(*names)
        return Path(as_it_starts(config, dict.fromkeys(config.log_dirs, DISK)).data_dir).name


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize("ran", [False, True], ids=["new", "it ran"])
def test_the_order_is_of_no_matter(machine: Machine, ran: bool) -> None:
    assert machine.format("a", "b") == "a"
    if ran:
        machine.run("a")
    assert machine.main("a", "b") == machine.main("b", "a") == "a"


def test_a_new_disk_is_put_in_front(machine: Machine) -> None:
    """It is formatted as a further one."""
    machine.format("a")
    machine.run("a")
    assert machine.format("new", "a") == "a"
    assert machine.main("new", "a") == "a"
    assert not (machine.root / "new" / INITIAL_CONTROLLERS).exists()


def test_a_controller_of_no_known_voters_gets_a_new_disk(machine: Machine) -> None:
    """It was formatted without a vote (KIP-853), and has taken part since: that stays as it is."""
    machine.quorum = {"controller.quorum.bootstrap.servers": "127.0.0.1:3"}
    machine.format("a")
    machine.run("a")
    before = (machine.root / "a" / PROMISE).read_bytes()
    assert machine.format("a", "new") == "a"
    assert (machine.root / "new" / META_PROPERTIES).exists()
    assert (machine.root / "a" / PROMISE).read_bytes() == before


def test_a_new_disk_that_an_earlier_build_formatted_in_front(machine: Machine) -> None:
    """As the main one, which it was not: the one with the promise is."""
    machine.format("new")
    machine.format("a")
    machine.run("a")
    assert machine.main("new", "a") == "a"


@pytest.mark.parametrize("names", [("b",), ("b", "a"), ("a", "b")])
@pytest.mark.parametrize("mounted", [False, True], ids=["no mount point", "an empty mount point"])
def test_the_main_one_is_missing(machine: Machine, names: tuple[str, ...], mounted: bool) -> None:
    """No node begins without metadata in what was one of its other directories."""
    machine.format("a", "b")
    machine.run("a")
    shutil.rmtree(machine.root / "a")
    if mounted:
        (machine.root / "a").mkdir()
    with pytest.raises(ConfigError, match=r"this node's metadata among them: .*/b was formatted as a further one"):
        machine.main(*names)


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
def test_the_main_one_is_lost_and_replaced(machine: Machine, names: tuple[str, ...]) -> None:
    """The advice of that sentence: the new disk becomes it, wherever it stands."""
    machine.format("a", "b")
    shutil.rmtree(machine.root / "a")
    assert machine.format(*names) == "a"
    assert machine.main(*names) == "a"


def test_two_have_metadata(machine: Machine) -> None:
    """A second quorum that an earlier build made: nobody but the operator can tell which one counts."""
    for name, reach in (("a", 812), ("b", 3)):
        machine.format(name)
        machine.run(name, reach)
    with pytest.raises(ConfigError, match=r"/b up to offset 3, epoch 2; .*/a up to offset 812, epoch 2"):
        machine.main("b", "a")
    with pytest.raises(ConfigError, match="one directory with the node's metadata"):
        machine.format("c", "a", "b")


def test_the_main_one_of_another_node(machine: Machine) -> None:
    """A disk that was put into the wrong machine."""
    config = machine.config("other", node=2)
    format_directory(DISK, config, cluster_id="c", rng=random.Random(1))
    machine.format("a")
    for name in ("a", "other"):
        machine.run(name)
    with pytest.raises(ConfigError, match=r"/other is one of node 2, this is node 1"):
        machine.main("other", "a")


def test_a_name_that_a_start_left_away(machine: Machine) -> None:
    """It was killed while it wrote names again."""
    machine.format("a", "b")
    machine.run("a")
    for name in (INITIAL_CONTROLLERS, PROMISE, META_PROPERTIES):
        (machine.root / "a" / name).rename(machine.root / "a" / f"{name}{AWAY}")
    assert machine.main("b", "a") == "a"


def test_nothing_is_formatted(machine: Machine) -> None:
    """Then there is nothing to go by, and the node says that it has to be formatted."""
    assert machine.main("a", "b") == "a"
