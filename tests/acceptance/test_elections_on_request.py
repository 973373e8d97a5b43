"""Elections that an operator asks for, and what an unclean one costs."""

from __future__ import annotations

import json
import subprocess
import sys

from strandline.client import Admin, ConfigResource
from strandline.cluster.node.dev import DevCluster
from strandline.proto.error_codes import ErrorCode
from tests.acceptance.helpers import (
    QUICK,
    describe,
    eventually,
    leader_of,
    make_topic,
    read_all,
    send_all,
    wait_isr,
    wait_leaderless,
)


def strandline(cluster: DevCluster, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "strandline.cli.main", *words, "--bootstrap", cluster.responsive]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def known(cluster: DevCluster) -> str:
    """What the controller has heard of the replicas of s43-0."""
    with Admin(cluster.responsive) as admin:
        [one] = admin.elect_leaders([("s43", 0)], unclean=True, dry_run=True)
    return one.message


def test_s43_an_unclean_election_says_what_it_loses_before_and_after() -> None:
    """Row S43: nobody in sync is left. The preview names the committed offsets that each candidate lacks and changes
    nothing; the election then loses these, and says so; the switch of the topic is off by default."""
    with DevCluster(nodes=3, controllers=3, settings=QUICK) as cluster:
        make_topic(cluster, "s43", min_insync_replicas="1")
        assert send_all(cluster, "s43", [b"everywhere"]) == [0]
        leader = leader_of(cluster, "s43")
        stale = [node for node in (1, 2, 3) if node != leader]
        for node in stale:
            cluster.kill(node)
        wait_isr(cluster, "s43", {leader})
        send_all(cluster, "s43", [b"here alone", b"and this"], acks="all")
        eventually(
            lambda: f"broker {leader} (up, in the ISR, log end 3 of epoch 0, high watermark 3)" in known(cluster)
        )
        cluster.kill(leader)
        for node in stale:
            cluster.start_node(node)
        wait_leaderless(cluster, "s43", stale)
        eventually(lambda: known(cluster).count("lacks 2 committed") == 2)  # both have told the controller of theirs
        with Admin(cluster.responsive) as admin:
            [entry] = [
                one
                for one in admin.describe_configs([ConfigResource("topic", "s43")])[ConfigResource("topic", "s43")]
                if one.name == "unclean.leader.election.enable"
            ]
            assert entry.value == "false"
        told = strandline(cluster, "topic", "elect", "s43", "--unclean", "--dry-run", "--output", "json")
        assert told.returncode == 0, told.stderr
        [preview] = json.loads(told.stdout)
        assert "committed offsets 1 to 2 (2) are lost" in preview["message"]
        assert "lacks 2 committed" in preview["message"]
        assert describe(cluster, "s43", via=stale).leader is None

        refused = strandline(cluster, "topic", "elect", "s43", "--unclean")
        assert refused.returncode != 0
        assert "--yes" in refused.stderr
        assert describe(cluster, "s43", via=stale).leader is None

        held = strandline(cluster, "topic", "elect", "s43", "--unclean", "--yes")
        assert held.returncode == 0, held.stderr
        assert "1 to 2" in " ".join(held.stdout.split())
        assert eventually(lambda: describe(cluster, "s43", via=stale).leader) in stale
        assert read_all(cluster, "s43") == [b"everywhere"]


def test_a_preferred_election_gives_leadership_back() -> None:
    """KIP-460: after a restart the preferred replica leads again when asked to; where it leads there is no need."""
    with DevCluster(nodes=3, settings=QUICK | {"auto.leader.rebalance.enable": "false"}) as cluster:
        make_topic(cluster, "preferred")
        first = describe(cluster, "preferred").replicas[0]
        assert leader_of(cluster, "preferred") == first
        cluster.stop_node(first)
        assert eventually(lambda: describe(cluster, "preferred").leader not in (None, first))
        cluster.start_node(first)
        wait_isr(cluster, "preferred", {1, 2, 3})
        with Admin(cluster.bootstrap) as admin:
            [preview] = admin.elect_leaders([("preferred", 0)], unclean=False, dry_run=True)
            assert preview.held
            assert f"Broker {first} would lead" in preview.message
            assert describe(cluster, "preferred").leader != first
            [election] = admin.elect_leaders([("preferred", 0)], unclean=False)
            assert election.held
            assert eventually(lambda: describe(cluster, "preferred").leader == first)
            [again] = admin.elect_leaders([("preferred", 0)], unclean=False)
            assert again.error is ErrorCode.ELECTION_NOT_NEEDED
            assert admin.elect_leaders(None, unclean=True) == []
            [unknown] = admin.elect_leaders([("nothing", 0)], unclean=False)
            assert unknown.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
