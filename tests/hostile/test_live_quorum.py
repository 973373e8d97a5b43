"""Three real nodes, and a peer that sends each of them whatever it likes on the port between nodes (schedule 62)."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import grpc
import pytest
from click.testing import CliRunner

from strandline.cli.main import main
from strandline.client import Admin
from strandline.cluster.node.dev import DevCluster
from strandline.controller import methods
from strandline.controller.raft.config import EPOCH_LEAD_MAX
from tests.acceptance.helpers import eventually, make_topic, read_all, send_all
from tests.hostile.internal import CONTROLLER, FORESEEN, QUORUM, Attacker
from tests.hostile.node import MISTAKES

MESSAGES = 1500


@pytest.fixture
def cluster() -> Iterator[DevCluster]:
    with DevCluster(nodes=3) as cluster:
        make_topic(cluster, "kept", replication=3, min_insync_replicas="2")
        yield cluster


def settings(cluster: DevCluster, node: int) -> str:
    return (cluster.root / f"node-{node}.properties").read_text()


def internal(cluster: DevCluster, node: int) -> str:
    """Where other nodes reach it."""
    [found] = re.findall(r"^listeners=.*INTERNAL://([^,\s]+)", settings(cluster, node), re.MULTILINE)
    return str(found)


def described(cluster: DevCluster) -> dict[str, Any]:
    """What the quorum's leader says of the quorum."""
    done = CliRunner().invoke(main, ["quorum", "describe", "-o", "json", "-b", cluster.responsive])
    assert done.exit_code == 0, done.output
    told: dict[str, Any] = json.loads(done.output)
    return told


def test_anything_at_all_on_the_port_between_nodes(cluster: DevCluster) -> None:
    """Messages of the quorum and the controller, well formed, nearly so and not at all, and frames of broker sessions:
    every process lives, no mistake is logged, the epoch stays within its bound, and records come and go on."""
    told = described(cluster)
    directories = {voter["node_id"]: UUID(voter["directory_id"]) for voter in told["voters"]}
    before, pids = int(told["leader_epoch"]), cluster.pids()
    with Admin(cluster.bootstrap) as admin:
        cluster_id = admin.describe_cluster().cluster_id
    send_all(cluster, "kept", [b"before"])
    rng = random.Random(62)
    attacker = Attacker(rng, cluster_id, directories, lambda: before)
    with ExitStack() as stack:
        peers = [stack.enter_context(grpc.insecure_channel(internal(cluster, node))) for node in cluster.node_ids]
        calls = []
        for _ in range(MESSAGES):
            path, data = attacker.message({**QUORUM, **CONTROLLER})
            calls.append(rng.choice(peers).unary_unary(path).future(data, timeout=20))
            if len(calls) >= 20:
                answered(calls)
        answered(calls)
        for peer in peers * 5:
            beats = [attacker.filled(methods.SESSION.request.message).SerializeToString() for _ in range(20)]
            frames = iter([*beats, *map(attacker.mutated, beats), rng.randbytes(200)])
            with suppress(grpc.RpcError):
                list(peer.stream_stream(methods.SESSION.path)(frames, timeout=10))
    assert cluster.pids() == pids, "nobody ended"
    cluster.wait_ready()
    eventually(lambda: send_all(cluster, "kept", [b"after"]))
    assert before <= described(cluster)["leader_epoch"] <= before + 2 * EPOCH_LEAD_MAX
    with Admin(cluster.bootstrap) as admin:
        assert "kept" in admin.list_topics()
    assert {b"before", b"after"} <= set(read_all(cluster, "kept"))
    assert cluster.pids() == pids
    for node in cluster.node_ids:
        log = Path(cluster.log_path(node)).read_text()
        mistake = MISTAKES.search(log)
        assert not mistake, log[max(0, mistake.start() - 500) : mistake.start() + 3000]


def answered(calls: list[grpc.Future]) -> None:
    """Wait for all of them: what does not parse is refused with a sentence, and no handler fails by itself."""
    for call in calls:
        error = call.exception()
        if error is not None:
            assert error.code() is not grpc.StatusCode.UNKNOWN or error.details().startswith(FORESEEN), error
    calls.clear()
