"""Elections that people ask for, the return of preferred leaders, tracked offsets, producer ids."""

from __future__ import annotations

from typing import Any

import pytest

from strandline.controller import api, broker_api
from strandline.controller.broker_api import DescribeReplicasRequest, ReplicaOffsets, ReplicaSet, TopicReplicaSet
from strandline.controller.machine import brokers, elections
from strandline.controller.machine.state import PRODUCER_ID_BLOCK, Result, first_producer_id
from strandline.controller.metadata.records import ProducerIdsRecord
from strandline.log.findings import LogCondition
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import NO_NODE, BrokerEpoch, NodeId, ProducerId

PREFERRED, UNCLEAN = api.ElectionKind


def test_preferred_election(machine_cluster: Any) -> None:
    """Not needed; not available while the preferred is out of sync; done once it is in the ISR."""
    cluster = machine_cluster(3)
    cluster.create()
    assert cluster.elect(PREFERRED)[0].error is ErrorCode.ELECTION_NOT_NEEDED
    cluster.fence(1)
    assert cluster.elect(PREFERRED)[0].error is ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    cluster.start(1)
    assert cluster.elect(PREFERRED)[0].error is ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    cluster.alter_isr([2, 3, 1])
    preview = cluster.elect(PREFERRED, dry_run=True)[0]
    assert (preview.error, preview.leader, cluster.partition().leader) == (ErrorCode.NONE, 1, 2)
    outcome = cluster.elect(PREFERRED)[0]
    assert (outcome.leader, outcome.unclean, cluster.partition().leader) == (1, False, 1)


def test_election_of_everything_leaves_out_what_needs_none(machine_cluster: Any) -> None:
    """Kafka's rule for a request that names nothing."""
    cluster = machine_cluster(3)
    cluster.create("t", [[1, 2], [2, 1]])
    cluster.fence(1)
    cluster.start(1)
    cluster.alter_isr([2, 1])
    outcomes = cluster.elect(PREFERRED, everything=True)
    assert [(outcome.partition, outcome.leader) for outcome in outcomes] == [(0, 1)]


def test_unclean_preview_ranks_candidates_and_counts_the_loss(machine_cluster: Any) -> None:
    """Best by (last epoch, log end), never by length alone; lost: below the highest known high watermark."""
    cluster = machine_cluster(3)
    cluster.create(min_insync_replicas="1")
    cluster.report(1, hw=100, leo=100, epoch=2)
    cluster.alter_isr([1])
    cluster.fence(1)
    cluster.report(2, hw=60, leo=90, epoch=1)
    cluster.report(3, hw=60, leo=70, epoch=2)
    cluster.now_ms = 250.0
    preview = cluster.elect(UNCLEAN, dry_run=True)[0]
    assert (preview.error, preview.leader, preview.unclean) == (ErrorCode.NONE, 3, True)
    assert "committed offsets 70 to 99 (30) are lost" in preview.message
    assert "the last report of broker 1, which had all that was acknowledged, 0.2 s ago. How many" in preview.message
    shown = [(one.node_id, one.alive, one.lost_records, one.age_ms) for one in preview.candidates]
    assert shown == [(1, False, 0, 250), (3, True, 30, 250), (2, True, 10, 250)]
    assert not cluster.partition().has_leader
    assert cluster.elect(UNCLEAN)[0].leader == 3
    assert cluster.partition().recovering
    assert [(loss.partition, loss.leader) for loss in cluster.losses] == [("t-0", 3)]
    assert "70 to 99 (30) are lost" in cluster.losses[0].message
    assert cluster.elect(UNCLEAN)[0].error is ErrorCode.ELECTION_NOT_NEEDED


def test_unclean_preview_of_whoever_holds_all_that_was_reported(machine_cluster: Any) -> None:
    """The reports are some seconds apart: what was acknowledged after the last one of who led is not known."""
    cluster = machine_cluster(2)
    cluster.create("t", [[1, 2]], min_insync_replicas="1")
    cluster.report(1, hw=100, leo=100, epoch=2)
    cluster.alter_isr([1])
    cluster.fence(1)
    cluster.report(2, hw=100, leo=100, epoch=2)
    cluster.now_ms = 2_000.0
    message = cluster.elect(UNCLEAN, dry_run=True)[0].message
    assert "holds every offset that is known to be committed. That is known from the last report of broker 1" in message
    assert "2.0 s ago. How many records were acknowledged after it is not known; they are lost too." in message


def why(cluster: Any) -> str:
    """What the preview of an unclean election says of partition 0 of t."""
    message: str = cluster.elect(UNCLEAN, dry_run=True)[0].message
    return message


def test_the_preview_says_why_nobody_leads(machine_cluster: Any) -> None:
    """Who is waited for, and for what: away, silent, offline, empty; and where nobody is left to wait for."""
    cluster = machine_cluster(4)
    cluster.create()
    for node in (1, 2, 3):
        cluster.fence(node)
    cluster.start(1)
    assert "broker 2, which had all that was acknowledged, is away, and broker 3, which had" in why(cluster)
    unserved = ReplicaSet((TopicReplicaSet(cluster.image.topics["t"].topic_id, (0,)),))
    cluster.register(2)
    cluster.beat(2, unserved=unserved)
    assert "broker 2, which had all that was acknowledged, cannot serve its replica" in why(cluster)
    cluster.fence(2)
    cluster.start(2, found=LogCondition.CUT)
    cluster.register(3, found=LogCondition.CUT)
    assert "the logs of brokers 2 and 3 were cut when recovered, or found gone" in why(cluster)
    assert "once all of them are back: broker 3 is away." in why(cluster)
    cluster.beat(3, offsets=())
    assert "once all of them are back: broker 3 has not reported yet where its log ends." in why(cluster)
    assert cluster.partition().leader == NO_NODE
    cluster.fence(3)
    cluster.start(3, found=LogCondition.LACKING)
    assert cluster.partition().leader == 2
    cluster.fence(2)
    cluster.start(2, found=LogCondition.LACKING)
    assert "no replica is left of which it is known that it has all that was acknowledged" in why(cluster)
    assert "Broker 1 was not in sync" in why(cluster)
    places = {one.node_id: (one.in_doubt, one.condition) for one in cluster.elect(UNCLEAN, dry_run=True)[0].candidates}
    assert places[2] == (False, LogCondition.LACKING)
    assert cluster.elect(UNCLEAN)[0].message.startswith("Broker 1 was not in sync")


def test_the_preview_says_what_the_best_candidate_may_lack(machine_cluster: Any) -> None:
    """A log in doubt, or one that lacks what it had, is no comfort although no offset is known that it lacks."""
    cluster = machine_cluster(2)
    cluster.create("t", [[1, 2]], min_insync_replicas="2")
    for node in (1, 2):
        cluster.fence(node)
    cluster.start(1, found=LogCondition.CUT)
    assert why(cluster).startswith(
        "The log of broker 1 was cut when it was recovered: acknowledged records may be lost."
    )
    cluster.fence(1)
    cluster.start(1, found=LogCondition.LACKING)
    assert why(cluster).startswith("Broker 1 lacked records when it started: acknowledged ones may be lost.")


def test_the_preview_of_an_empty_log_and_of_a_last_known_leader(machine_cluster: Any) -> None:
    """An empty log in doubt waits for every replica; under flush.policy=replicate the last leader is waited for."""
    cluster = machine_cluster(3)
    cluster.create()
    for node in (1, 2, 3):
        cluster.fence(node)
    cluster.logs = {(node, "t", 0): (-1, 0) for node in (2, 3)}
    for node in (2, 3):
        cluster.start(node, found=None)
    assert "that is empty, and another replica holds more or is away" in why(cluster)
    cluster = machine_cluster(3, flush_policy="replicate")
    cluster.create()
    for node in (1, 2, 3):
        cluster.fence(node)
    for node in (1, 2):
        cluster.start(node)
    assert "Nobody leads: broker 3, which had all that was acknowledged, is away." in why(cluster)
    cluster.register(3)
    assert "Nobody leads: broker 3, the last leader, is away." in why(cluster)


def test_unclean_election_without_anybody_alive(machine_cluster: Any) -> None:
    """ELIGIBLE_LEADERS_NOT_AVAILABLE, with the candidates shown."""
    cluster = machine_cluster(2)
    cluster.create("t", [[1]])
    cluster.fence(1)
    outcome = cluster.elect(UNCLEAN)[0]
    assert (outcome.error, outcome.leader) == (ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, NO_NODE)
    assert [one.lost_records for one in outcome.candidates] == [-1]


def test_election_of_an_unknown_partition(machine_cluster: Any) -> None:
    """UNKNOWN_TOPIC_OR_PARTITION for it alone."""
    assert machine_cluster(1).elect(PREFERRED)[0].error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_preferred_leaders_return_after_a_rolling_restart(machine_cluster: Any) -> None:
    """Row S18: each node restarts in turn; the periodic check gives every partition back to its first replica."""
    cluster = machine_cluster(3)
    cluster.create("t", [[1, 2, 3], [2, 3, 1], [3, 1, 2]])
    for node in (1, 2, 3):
        epoch = cluster.stop_cleanly(node)
        cluster.start(node, previous_broker_epoch=epoch)
        for number in range(3):
            cluster.alter_isr([1, 2, 3], number=number)
    leaders = [info.leader for _, info in cluster.image.partitions()]
    assert leaders != [1, 2, 3]
    assert cluster.run(elections.balance_leaders(cluster.state)) > 0
    assert [info.leader for _, info in cluster.image.partitions()] == [1, 2, 3]
    assert cluster.run(elections.balance_leaders(cluster.state)) == 0


def test_tracked_offsets_are_soft_and_have_an_age(machine_cluster: Any) -> None:
    """They come with heartbeats, go with the controller, and are never made up."""
    cluster = machine_cluster(2)
    cluster.create("t", [[1, 2]])
    topic_id = cluster.image.topics["t"].topic_id
    cluster.now_ms = 100.0
    cluster.beat(1, offsets=(ReplicaOffsets(topic_id, 0, 5, 7, 0),))
    cluster.now_ms = 150.0

    def reports() -> list[tuple[int, int, int, int]]:
        reply = elections.describe_replicas(cluster.state, DescribeReplicasRequest(("t",)), cluster.now_ms).reply
        return [(one.node_id, one.high_watermark, one.log_end_offset, one.age_ms) for one in reply.replicas]

    assert reports() == [(1, 5, 7, 50), (2, -1, -1, -1)]
    cluster.fail_over()
    assert reports() == [(1, -1, -1, -1), (2, -1, -1, -1)]
    with pytest.raises(KafkaError):
        elections.describe_replicas(cluster.state, DescribeReplicasRequest(("nope",)), 0)


def test_producer_ids_do_not_begin_again_at_their_end(machine_cluster: Any) -> None:
    """Rule C3: the last block ends below 2^63, and after it there is none."""
    cluster = machine_cluster(1)
    last = 2**63 - 1 - PRODUCER_ID_BLOCK
    epoch = BrokerEpoch(cluster.epoch(1))
    cluster.run(Result(None, [ProducerIdsRecord(NodeId(1), epoch, ProducerId(last))]))
    request = broker_api.AllocateProducerIdsRequest(NodeId(1), epoch)
    assert cluster.run(brokers.allocate_producer_ids(cluster.state, request)).first_producer_id == last
    with pytest.raises(KafkaError, match="All producer ids"):
        brokers.allocate_producer_ids(cluster.state, request)


def test_producer_id_blocks_are_never_given_out_twice(machine_cluster: Any) -> None:
    """Rule C3, KAFKA-15552: blocks of 1000, over failovers too; only a registered broker of this life gets one."""
    cluster = machine_cluster(2)
    blocks = []
    for round_ in range(6):
        node = 1 + round_ % 2
        request = broker_api.AllocateProducerIdsRequest(node, cluster.epoch(node))
        block = cluster.run(brokers.allocate_producer_ids(cluster.state, request))
        blocks.append((block.first_producer_id, block.count))
        cluster.fail_over()
    first = first_producer_id(cluster.image.cluster_id)
    assert blocks == [(first + 1000 * number, 1000) for number in range(6)]
    with pytest.raises(KafkaError) as caught:
        brokers.allocate_producer_ids(cluster.state, broker_api.AllocateProducerIdsRequest(1, 999))
    assert caught.value.code is ErrorCode.STALE_BROKER_EPOCH
