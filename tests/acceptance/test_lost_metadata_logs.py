"""Controllers whose metadata log, or whole disk, is gone: what a node says, and what happens to who does as it says.

Real processes and the commands that their messages name (rules A11 and A14, schedule 49).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from strandline.cli.main import main
from strandline.client import Admin, NewTopic
from strandline.cluster.node.dev import DevCluster
from tests.acceptance.helpers import QUICK, eventually, make_topic, read_all, send_all

RECORDS = 60


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[DevCluster]:
    """Three combined nodes, and a topic "kept" on all of them."""
    with DevCluster(tmp_path, nodes=3, settings=QUICK) as cluster:
        make_topic(cluster, "kept", replication=3, min_insync_replicas="2")
        send_all(cluster, "kept", [b"%d" % number for number in range(RECORDS)])
        yield cluster


def run(*words: str) -> Result:
    result = CliRunner().invoke(main, words, catch_exceptions=False)
    assert "Traceback" not in result.output
    return result


def done(*words: str) -> str:
    """The output of a command that must succeed."""
    result = run(*words)
    assert result.exit_code == 0, result.output
    return result.output


def quorum(cluster: DevCluster) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(done("quorum", "describe", "-o", "json", "-b", cluster.responsive))
    return told


def members(told: dict[str, Any], kind: str) -> dict[int, str]:
    return {member["node_id"]: member["directory_id"] for member in told[kind]}


def move_away(cluster: DevCluster, node_id: int) -> None:
    """As the messages advise: a node that does not run, its metadata directory elsewhere."""
    directory = Path(cluster.data_dir(node_id), "__cluster_metadata-0")
    shutil.move(directory, cluster.root / f"moved-away-{node_id}")


def flip(path: Path, position: int) -> None:
    """Another byte at `position`."""
    data = bytearray(path.read_bytes())
    data[position] ^= 0xFF
    path.write_bytes(data)


def config(cluster: DevCluster, node_id: int) -> str:
    return str(cluster.root / f"node-{node_id}.properties")


def votes_again(cluster: DevCluster, node_id: int) -> None:
    """With one of the others down, the rest are no majority but with this node's vote: a topic is created so."""
    leader = quorum(cluster)["leader_id"]
    other = next(node for node in cluster.node_ids if node not in (leader, node_id))
    cluster.kill(other)
    with Admin(cluster.responsive) as admin:
        admin.create_topics([NewTopic(f"with-the-vote-of-{node_id}", replica_assignment={0: [node_id]})])
    cluster.start_node(other)
    assert len(read_all(cluster, "kept")) == RECORDS


def test_a_controller_with_a_damaged_metadata_log_gets_its_vote_back(cluster: DevCluster) -> None:
    """It refuses to start, and says to move the directory away. Then it says that it has no vote; `quorum describe`
    says so too, and how to restore it; that is done, and risks nothing."""
    former = members(quorum(cluster), "voters")[3]
    cluster.kill(3)
    silent = eventually(
        lambda: (told := run("quorum", "restore-vote", "3", "-b", cluster.responsive)).exit_code and told
    )
    assert "node 3 does not fetch" in silent.output
    [log] = Path(cluster.data_dir(3), "__cluster_metadata-0").glob("*.log")
    flip(log, 200)
    cluster.start_node(3, wait=False)
    assert eventually(lambda: cluster.exit_code(3)) == 1
    assert f"{log} at byte" in cluster.last_words(3)
    assert "move its __cluster_metadata-0 directory away and start it again" in cluster.last_words(3)
    move_away(cluster, 3)
    cluster.start_node(3)
    assert "lost its metadata log" in cluster.last_words(3)
    assert "strandline quorum restore-vote" in cluster.last_words(3)
    told = eventually(lambda: (now := quorum(cluster)) and 3 in members(now, "observers") and now)
    assert members(told, "voters")[3] == former
    lost = members(told, "observers")[3]
    assert lost != former
    table = done("quorum", "describe", "-b", cluster.responsive)
    assert "! node 3 has lost its log, or its disk, and has no vote: strandline quorum restore-vote 3" in table

    preview = done("quorum", "restore-vote", "3", "--dry-run", "-b", cluster.responsive)
    assert f"Node 3 would vote again, with directory {lost}." in preview
    assert members(quorum(cluster), "voters")[3] == former
    restored = done("quorum", "restore-vote", "3", "-b", cluster.responsive)
    assert f"Node 3 votes again, with directory {lost}." in restored
    assert members(quorum(cluster), "voters")[3] == lost
    assert "there is nothing to restore" in done("quorum", "restore-vote", "3", "-b", cluster.responsive)
    votes_again(cluster, 3)
    refused = run("quorum", "restore-vote", "7", "-b", cluster.responsive)
    assert refused.exit_code == 2
    assert "node 7 does not follow the quorum" in refused.output


def test_a_controller_with_a_new_disk_is_formatted_without_a_vote(cluster: DevCluster) -> None:
    """The whole data directory is gone; formatted as the documentation says, it cannot vote a second time."""
    meta = Path(cluster.data_dir(2), "meta.properties").read_text()
    cluster_id = next(line.partition("=")[2] for line in meta.splitlines() if line.startswith("cluster.id="))
    cluster.kill(2)
    shutil.rmtree(cluster.data_dir(2))
    told = done("format", "-c", config(cluster, 2), "--cluster-id", cluster_id, "--without-vote")
    assert "It has no vote: start it, and run `strandline quorum restore-vote 2`" in told
    cluster.start_node(2)
    eventually(lambda: 2 in members(quorum(cluster), "observers"))
    done("quorum", "restore-vote", "2", "-b", cluster.responsive)
    votes_again(cluster, 2)


def test_a_controller_that_cannot_tell_how_it_voted_starts_without_a_vote(cluster: DevCluster) -> None:
    """Both copies of what it promised are damaged: it refuses, and the commands that it names are run."""
    meta = Path(cluster.data_dir(3), "meta.properties").read_text()
    cluster_id = next(line.partition("=")[2] for line in meta.splitlines() if line.startswith("cluster.id="))
    cluster.kill(3)
    data = Path(cluster.data_dir(3))
    for path in (data / "__cluster_metadata-0" / "quorum-state", data / "quorum-promise"):
        flip(path, 3)
    cluster.start_node(3, wait=False)
    assert eventually(lambda: cluster.exit_code(3)) == 1
    assert "This node may have voted" in cluster.last_words(3)
    assert "`strandline format --ignore-formatted --without-vote` with its configuration" in cluster.last_words(3)
    move_away(cluster, 3)
    (data / "quorum-promise").rename(cluster.root / "promise-moved-away")
    done("format", "-c", config(cluster, 3), "--cluster-id", cluster_id, "--ignore-formatted", "--without-vote")
    cluster.start_node(3)
    eventually(lambda: 3 in members(quorum(cluster), "observers"))
    done("quorum", "restore-vote", "3", "-b", cluster.responsive)
    votes_again(cluster, 3)


def test_too_few_are_left_and_one_votes_by_force(cluster: DevCluster) -> None:
    """Two of three lost their logs: nobody leads, and nothing can be restored. The last resort says what it risks;
    carried out on one of them, the one that has its log leads, and the other gets its vote back as usual."""
    for node_id in (2, 3):
        cluster.kill(node_id)
    alone = ("-b", cluster.client(1), "-X", "default.api.timeout.ms=3000")
    eventually(lambda: run("quorum", "describe", *alone).exit_code != 0)  # until then it would serve its log
    for node_id in (2, 3):
        move_away(cluster, node_id)
        cluster.start_node(node_id, wait=False)
        eventually(lambda node_id=node_id: "lost its metadata log" in cluster.last_words(node_id))
    refused = run("quorum", "restore-vote", "3", *alone)
    assert refused.exit_code != 0, refused.output

    cluster.stop_node(3)
    warned = run("quorum", "force-vote", "-c", config(cluster, 3))
    assert warned.exit_code == 1
    assert "acknowledged records with them" in warned.output
    assert "would have one again" in done("quorum", "force-vote", "-c", config(cluster, 3), "--dry-run")
    flag = "--i-accept-the-loss-of-committed-metadata"
    assert "votes again when it starts" in done("quorum", "force-vote", "-c", config(cluster, 3), flag)
    cluster.start_node(3)
    cluster.wait_ready()
    assert quorum(cluster)["leader_id"] == 1, "the only one that has the log"
    done("quorum", "restore-vote", "2", "-b", cluster.responsive)
    assert len(members(quorum(cluster), "voters")) == 3
    votes_again(cluster, 2)
    cluster.stop_node(3)
    assert "there is nothing to force" in done("quorum", "force-vote", "-c", config(cluster, 3), flag)
    cluster.start_node(3)


def test_the_only_controller_without_its_log_refuses(tmp_path: Path) -> None:
    """It would form a new, empty cluster under the old name. It says what to do; the directory put back, all is
    there."""
    with DevCluster(tmp_path, nodes=1) as cluster:
        make_topic(cluster, "kept", replication=1)
        send_all(cluster, "kept", [b"x"])
        cluster.kill(1)
        directory = Path(cluster.data_dir(1), "__cluster_metadata-0")
        move_away(cluster, 1)
        cluster.start_node(1, wait=False)
        assert eventually(lambda: cluster.exit_code(1)) == 1
        assert "the metadata log was lost" in cluster.last_words(1)
        assert "Put the directory back as it was" in cluster.last_words(1)
        shutil.rmtree(directory, ignore_errors=True)
        shutil.move(cluster.root / "moved-away-1", directory)
        cluster.start_node(1)
        assert len(read_all(cluster, "kept")) == 1
        with Admin(cluster.bootstrap) as admin:
            assert "kept" in admin.list_topics()
