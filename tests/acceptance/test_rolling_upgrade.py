"""A cluster is rolled from an earlier build to this one, and back, and up again, while librdkafka writes and reads
(docs/upgrade.md; rules A32 to A35)."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from strandline.cli.main import main
from strandline.client import LATEST_TIERED, Admin, Producer
from strandline.controller.metadata.features import METADATA_FEATURE, NEWEST_LEVEL
from tests.acceptance.helpers import eventually, make_topic, read_all
from tests.acceptance.rolling import (
    ROOT,
    SETTINGS,
    TIERED,
    Load,
    RollingCluster,
    make_state,
    sources_of,
    state_of,
    wheel_of,
)
from tests.lake.stage import document, lake

pytestmark = pytest.mark.timeout(900)

EARLIER = "53dd7cb1"
"""The last build before there were levels."""

HALF_UP_S = 600

TIERED_RECORDS = 400


def run(cluster: RollingCluster, *words: str, expect: int = 0) -> Result:
    told = CliRunner().invoke(main, words, env={"STRANDLINE_BOOTSTRAP": cluster.responsive})
    assert told.exit_code == expect, (told.output, told.stderr, told.exception)
    return told


def level(cluster: RollingCluster) -> int:
    with Admin(cluster.responsive) as admin:
        return admin.describe_features().finalized.get(METADATA_FEATURE, 1)


def committed(cluster: RollingCluster, group: str) -> dict[int, int]:
    with Admin(cluster.responsive) as admin:
        return {tp.partition: one.offset for tp, one in admin.list_group_offsets(group).items()}


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sources of the earlier build."""
    return sources_of(EARLIER, tmp_path_factory.mktemp("earlier"))


def test_a_node_is_rolled_up_killed_and_rolled_back(earlier: Path, tmp_path: Path) -> None:
    """The sample: sources in the place of wheels, one node, no finalizing."""
    cluster = RollingCluster(tmp_path / "data", earlier / "src")
    with cluster:
        make_topic(cluster, "t", partitions=2)
        load = Load(cluster.bootstrap, "t", "g")
        with load.running():
            load.wait_more(50)
            cluster.roll(1, ROOT / "src", kill=True)
            held = f"{METADATA_FEATURE} {NEWEST_LEVEL} is not known to the build of node 2, 3"
            assert held in run(cluster, "upgrade", "check", expect=1).stdout
            assert held in run(cluster, "upgrade", "finalize", expect=1).stderr
            load.wait_more(50)
            cluster.roll(1, earlier / "src")
            load.wait_more(50)
        load.hold(committed(cluster, "g"))


class Kept:
    """What has to be there all the time, beside the records of the load."""

    def __init__(self, cluster: RollingCluster, where: Path) -> None:
        self._cluster = cluster
        self._lake = str(where)
        self._state = make_state(cluster.bootstrap)
        make_topic(cluster, "stored", **TIERED)
        make_topic(cluster, "lake")
        self.exported = 0
        with Producer(cluster.bootstrap) as producer:
            for number in range(TIERED_RECORDS):
                producer.send("stored", b"%d" % number + bytes(500), partition=0).result(60)
        self._tiered = eventually(self._stored)

    def _stored(self) -> int:
        with Admin(self._cluster.responsive) as admin:
            [answer] = admin.list_offsets({("stored", 0): LATEST_TIERED}).values()
        assert answer.offset > TIERED_RECORDS // 2
        return answer.offset

    def holds(self) -> None:
        """Users, access, quotas; the tier, read whole; the lake, which goes on where it was."""
        cluster = self._cluster
        eventually(lambda: state_of(cluster.responsive) == self._state, 30)
        assert self._stored() >= self._tiered
        values = read_all(cluster, "stored")
        assert [bytes(value or b"")[:-500] for value in values] == [b"%d" % at for at in range(TIERED_RECORDS)]
        with Producer(cluster.responsive) as producer:
            for number in range(self.exported, self.exported + 20):
                producer.send("lake", b"%d" % number, partition=0).result(60)
        self.exported += 20
        lake(cluster.responsive, "export", "lake", "--to", self._lake)
        status = document(lake(cluster.responsive, "status", self._lake, "--output", "json"))
        assert status["rows"] == self.exported, status


@pytest.fixture(scope="module")
def present(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this build, unpacked."""
    return wheel_of(ROOT, tmp_path_factory.mktemp("present") / "wheel")


@pytest.mark.timeout(2400)
@pytest.mark.parametrize("half_up_s", [HALF_UP_S])
def test_wheels_are_rolled_up_and_down_and_up_and_finalized(
    earlier: Path, present: Path, tmp_path: Path, half_up_s: int
) -> None:
    """Half up for so long with kills, all up, all down, all up, finalized: every record read, every group, user, entry
    of access, quota, tier and lake where it was. Then the earlier build changes nothing of a node's directory."""
    old, new = wheel_of(earlier, tmp_path / "wheel"), present
    chance = random.Random(34)
    store = tmp_path / "store"
    store.mkdir()
    cluster = RollingCluster(tmp_path / "data", old, SETTINGS | {"remote.log.storage.url": f"file://{store}"})
    with cluster:
        make_topic(cluster, "t", partitions=3)
        kept = Kept(cluster, tmp_path / "lake")
        load = Load(cluster.bootstrap, "t", "g")
        kills = 0
        with load.running():
            load.wait_more()
            kept.holds()
            cluster.roll(1, new)
            until = time.monotonic() + half_up_s
            while time.monotonic() < until:
                node = chance.choice(cluster.broker_ids)
                cluster.roll(node, cluster.builds[node], kill=True)
                load.wait_more(50)
                kills += 1
            assert "blocked" in run(cluster, "upgrade", "check", expect=1).stdout
            kept.holds()
            for build, kill in ((new, False), (old, False), (new, True)):
                for node in cluster.broker_ids:
                    cluster.roll(node, build, kill=kill)
                load.wait_more()
                kept.holds()
                assert level(cluster) == 1
            run(cluster, "upgrade", "finalize")
            eventually(lambda: level(cluster) == NEWEST_LEVEL)
            load.wait_more()
            _is_refused(cluster, 3, old)
            cluster.roll(3, new)
            for node in cluster.broker_ids:
                cluster.roll(node, new, kill=True)
            load.wait_more()
            kept.holds()
        load.hold(committed(cluster, "g"))
    print(f"half up for {half_up_s} s with {kills} kills; {len(load.acknowledged)} records acknowledged, all read")


def _is_refused(cluster: RollingCluster, node: int, old: Path) -> None:
    """The earlier build does not know the level that was finalized: it ends."""
    cluster.stop_node(node)
    cluster.builds[node] = old
    cluster.start_node(node, wait=False)
    assert eventually(lambda: cluster.exit_code(node), 60) != 0
