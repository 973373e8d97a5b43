"""Registration, fencing, unfencing, controlled shutdown: rule B12; schedules 8, 11, KAFKA-15586."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from strandline.controller import api, broker_api
from strandline.controller.machine import brokers
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import NO_NODE, NodeId


def test_broker_epoch_is_the_offset_of_its_registration(machine_cluster: Any) -> None:
    """Rule B12: the broker epoch is the registration record's offset, even behind records that end its former life."""
    cluster = machine_cluster(3)
    cluster.create()
    cluster.fence(1)
    cluster.register(1)
    for node in (1, 2, 3):
        record = cluster.log[cluster.epoch(node)]
        assert (record.node_id, record.broker_epoch) == (node, cluster.epoch(node))


def test_same_incarnation_keeps_its_epoch(machine_cluster: Any) -> None:
    """A retry of a registration whose reply was lost."""
    cluster = machine_cluster(1)
    request = cluster.registration(2)
    first = cluster.run(brokers.register_broker(cluster.state, request, len(cluster.log), 0)).broker_epoch
    again = cluster.run(brokers.register_broker(cluster.state, request, len(cluster.log), 0)).broker_epoch
    assert first == again == cluster.epoch(2)
    assert cluster.image.brokers[2].fenced


def test_live_session_refuses_another_incarnation(machine_cluster: Any) -> None:
    """Two processes under one node id: the second is refused while the first lives, accepted once it is fenced."""
    cluster = machine_cluster(1)
    with pytest.raises(KafkaError) as caught:
        cluster.register(1)
    assert caught.value.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    cluster.fence(1)
    assert cluster.register(1) > 0


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"cluster_id": "another"}, ErrorCode.INCONSISTENT_CLUSTER_ID),
        ({"min_metadata_version": 2, "max_metadata_version": 3}, ErrorCode.UNSUPPORTED_VERSION),
    ],
)
def test_registration_refused(machine_cluster: Any, change: dict[str, Any], error: ErrorCode) -> None:
    """A broker of another cluster, or one that cannot replay this cluster's metadata."""
    with pytest.raises(KafkaError) as caught:
        machine_cluster(1).register(2, **change)
    assert caught.value.code is error


def test_unfenced_only_once_its_metadata_reach_its_registration(machine_cluster: Any) -> None:
    """Rule B12: a broker that does not know its own registration knows too little to serve."""
    cluster = machine_cluster(1)
    epoch = cluster.register(2)
    assert cluster.beat(2, want_fence=True).fenced
    reply = cluster.beat(2, metadata_offset=epoch - 1)
    assert reply.fenced
    assert not reply.caught_up
    reply = cluster.beat(2, metadata_offset=epoch)
    assert reply.caught_up
    assert not reply.fenced
    assert cluster.image.brokers[2].active


def test_heartbeat_of_another_life_is_refused(machine_cluster: Any) -> None:
    """Its process has been replaced, or its node unregistered: it must stop."""
    cluster = machine_cluster(1)
    old = cluster.epoch(1)
    cluster.fence(1)
    cluster.start(1)
    for changes in ({"broker_epoch": old}, {"node_id": 9, "broker_epoch": 1}):
        with pytest.raises(KafkaError) as caught:
            cluster.beat(1, **changes)
        assert caught.value.code is ErrorCode.STALE_BROKER_EPOCH


def test_fencing_moves_leaderships_and_unfencing_alone_does_not_give_them_back(machine_cluster: Any) -> None:
    """Fenced: in no ISR, leads nothing. Back: follows until it has caught up."""
    cluster = machine_cluster(3)
    cluster.create()
    cluster.fence(1)
    info = cluster.partition()
    assert (info.leader, info.isr) == (2, (2, 3))
    cluster.beat(1)
    assert cluster.image.brokers[1].active
    assert cluster.partition() == info


def test_restart_after_an_unclean_stop_leaves_isr_and_elr(machine_cluster: Any) -> None:
    """Schedule 11, KAFKA-15586: the ISR shrank to 2, which loses power and its tail; an eligible replica leads, not
    2."""
    cluster = machine_cluster(3, flush_policy="replicate")
    cluster.create()
    cluster.fence(1)
    cluster.fence(3)
    assert cluster.partition().isr == (2,)
    assert cluster.partition().eligible_leader_replicas == (3,)
    cluster.fence(2)
    assert cluster.partition().eligible_leader_replicas == (2, 3)
    cluster.start(2)
    info = cluster.partition()
    assert (info.leader, info.isr, info.eligible_leader_replicas) == (NO_NODE, (), (3,))
    cluster.beat(3)
    info = cluster.partition()
    assert (info.leader, info.isr, info.recovering) == (3, (3,), False)


def test_restart_after_a_clean_stop_keeps_its_eligibility(machine_cluster: Any) -> None:
    """flush.policy=replicate: the previous broker epoch proves that nothing was lost."""
    cluster = machine_cluster(3, flush_policy="replicate")
    cluster.create()
    cluster.fence(1)
    cluster.fence(3)
    epoch = cluster.stop_cleanly(2)
    assert not cluster.partition().has_leader
    cluster.start(2, previous_broker_epoch=epoch)
    info = cluster.partition()
    assert (info.leader, info.isr, info.recovering) == (2, (2,), False)


def test_clean_marker_of_an_older_life_proves_nothing(machine_cluster: Any) -> None:
    """KAFKA-15586: the marker names an epoch; another epoch has been on record since, so that life ended uncleanly."""
    cluster = machine_cluster(3, flush_policy="replicate")
    cluster.create("t", [[2]])
    epoch = cluster.stop_cleanly(2)
    cluster.start(2, previous_broker_epoch=epoch)
    cluster.fence(2)
    cluster.register(2, previous_broker_epoch=epoch)
    assert cluster.partition().eligible_leader_replicas == ()


def test_broker_registers_again_before_it_was_fenced(machine_cluster: Any) -> None:
    """Its session ran out and the timer has not come yet: the new life starts fenced, so it must leave every ISR."""
    cluster = machine_cluster(3)
    cluster.create()
    cluster.now_ms = 9_000.0
    for node in (2, 3):
        cluster.beat(node)
    cluster.register(1, previous_broker_epoch=cluster.epoch(1))
    assert cluster.partition().isr == (2, 3)
    assert cluster.image.brokers[1].fenced


def test_who_stopped_uncleanly_and_registers_before_it_was_fenced_leaves_the_isr(machine_cluster: Any) -> None:
    """KAFKA-15586: it may lack what it has acknowledged, and is neither in sync nor eligible, even as the last one."""
    cluster = machine_cluster(3, flush_policy="replicate")
    cluster.create()
    cluster.fence(1)
    cluster.now_ms = 9_000.0
    cluster.beat(3)
    cluster.register(2)
    info = cluster.partition()
    assert (info.leader, info.isr, info.eligible_leader_replicas) == (3, (3,), ())
    cluster.now_ms = 18_000.0
    cluster.register(3)
    info = cluster.partition()
    assert (info.leader, info.isr, info.eligible_leader_replicas) == (NO_NODE, (), ())


def test_all_killed_and_back_in_any_order_the_last_one_in_sync_leads(machine_cluster: Any) -> None:
    """flush.policy=replicate, SIGKILL of all: the last one in the ISR leads when it is back, uncleanly: others may hold
    more of what was acknowledged and synced nowhere."""
    cluster = machine_cluster(3, flush_policy="replicate")
    cluster.create()
    for node in (1, 2, 3):
        cluster.fence(node)
    for node in (1, 2):
        cluster.start(node)
        assert not cluster.partition().has_leader
    cluster.start(3)
    assert (cluster.partition().leader, cluster.partition().recovering) == (3, True)


def test_controlled_shutdown(machine_cluster: Any) -> None:
    """Leaderships move first; SHUTDOWN_NOW once all active brokers have seen that; the broker then is fenced."""
    cluster = machine_cluster(3)
    cluster.create()
    reply = cluster.beat(1, want_shutdown=True)
    assert reply.in_controlled_shutdown
    assert not reply.should_shut_down
    info = cluster.partition()
    assert (info.leader, info.isr) == (2, (2, 3))
    moved = len(cluster.log) - 1
    cluster.beat(2)
    assert not cluster.beat(1, want_shutdown=True).should_shut_down
    reply = cluster.beat(3, metadata_offset=moved - 1)
    assert reply.report_at_offset == moved
    assert not cluster.beat(1, want_shutdown=True).should_shut_down
    cluster.beat(3, metadata_offset=moved)
    assert cluster.beat(1, want_shutdown=True).should_shut_down
    assert cluster.image.brokers[1].fenced


def test_controlled_shutdown_survives_a_new_controller(machine_cluster: Any) -> None:
    """The new one finds the broker in shutdown, waits for the others to report to it, and lets it go."""
    cluster = machine_cluster(3)
    cluster.create()
    cluster.beat(1, want_shutdown=True)
    cluster.fail_over()
    assert not cluster.beat(1, want_shutdown=True).should_shut_down
    cluster.beat(2)
    cluster.beat(3)
    assert cluster.beat(1, want_shutdown=True).should_shut_down


def test_shutdown_of_a_broker_that_leads_nothing_is_immediate(machine_cluster: Any) -> None:
    """And of a fenced one."""
    cluster = machine_cluster(3)
    cluster.create("t", [[1, 2]])
    assert cluster.beat(3, want_shutdown=True).should_shut_down
    cluster.fence(1)
    assert cluster.beat(1, want_shutdown=True).should_shut_down


def test_sole_replica_may_stop_and_leads_again_after_its_return(machine_cluster: Any) -> None:
    """With one copy nobody can take over; the broker is let go all the same and stays eligible."""
    cluster = machine_cluster(1)
    cluster.create("t", [[1]])
    epoch = cluster.stop_cleanly(1)
    assert not cluster.partition().has_leader
    cluster.start(1, previous_broker_epoch=epoch)
    assert (cluster.partition().leader, cluster.partition().recovering) == (1, False)


def test_unregister(machine_cluster: Any) -> None:
    """A broker taken out for good is in no ISR, no ELR and not in the image; an unknown one is refused."""
    cluster = machine_cluster(3)
    cluster.create()
    request = broker_api.UnregisterBrokerRequest(1, dry_run=True)
    cluster.run(brokers.unregister_broker(cluster.state, request))
    assert 1 in cluster.image.brokers
    cluster.run(brokers.unregister_broker(cluster.state, broker_api.UnregisterBrokerRequest(1)))
    assert 1 not in cluster.image.brokers
    assert cluster.partition().isr == (2, 3)
    with pytest.raises(KafkaError) as caught:
        brokers.unregister_broker(cluster.state, broker_api.UnregisterBrokerRequest(1))
    assert caught.value.code is ErrorCode.BROKER_ID_NOT_REGISTERED


def test_expired_brokers_are_fenced_one_at_a_time(machine_cluster: Any) -> None:
    """So that the second fencing sees what became of the first one's partitions."""
    cluster = machine_cluster(3)
    cluster.create()
    cluster.now_ms = 9000.0
    cluster.beat(3)
    fenced = []
    while (gone := cluster.run(brokers.fence_expired(cluster.state, cluster.now_ms))) is not None:
        fenced.append(gone)
    assert fenced == [(1, "it is gone"), (2, "it is gone")]
    assert (cluster.partition().leader, cluster.partition().eligible_leader_replicas) == (3, (2,))


def test_incarnation_is_on_record(machine_cluster: Any) -> None:
    """Probes compare it with what answers at the broker's port."""
    cluster = machine_cluster(1)
    assert cluster.image.brokers[1].incarnation_id == UUID(int=1)


@pytest.mark.parametrize("first", [1, 2, 3])
def test_who_lost_its_disk_is_no_last_known_leader(machine_cluster: Any, first: int) -> None:
    """All lose power, one of them its disk too: whoever is back first, the empty one does not lead by itself, although
    it was the last in sync and the others have left ISR and ELR by their unclean stops. Unavailable, not lost."""
    cluster = machine_cluster(3, flush_policy="replicate")
    cluster.create()
    for node in (2, 3, 1):
        cluster.fence(node)
    assert cluster.partition().last_known_elr == (1,)
    for node in [first, *({1, 2, 3} - {first})]:
        if node == 1:
            cluster.start(1, directory_id=UUID(int=7), found=None)
        else:
            cluster.start(node)
        assert cluster.partition().leader != 1
    assert cluster.partition().leader == NO_NODE
    outcome = cluster.elect(api.ElectionKind.UNCLEAN)[0]
    assert outcome.leader != NO_NODE


def test_who_kept_its_disk_is_the_last_known_leader(machine_cluster: Any) -> None:
    """The same with every disk kept: the last in sync leads, with all that was acknowledged."""
    cluster = machine_cluster(3, flush_policy="replicate")
    cluster.create()
    for node in (2, 3, 1):
        cluster.fence(node)
    for node in (2, 3, 1):
        cluster.start(node)
    assert cluster.partition().leader == 1


def test_who_is_taken_out_for_good_is_no_last_known_leader(machine_cluster: Any) -> None:
    """Its id may come back with another disk, of which the controller could not tell."""
    cluster = machine_cluster(3, flush_policy="replicate")
    cluster.create()
    for node in (2, 3, 1):
        cluster.fence(node)
    cluster.run(brokers.unregister_broker(cluster.state, broker_api.UnregisterBrokerRequest(NodeId(1), False)))
    assert cluster.partition().last_known_elr == ()


def test_a_broker_with_a_setting_that_cannot_be_is_refused_in_words(machine_cluster: Any) -> None:
    """It was an error of the controller's own, with a traceback, to whoever may call it."""
    cluster = machine_cluster(3)
    cluster.flush_policy = "a\0b"
    with pytest.raises(
        KafkaError, match=r"Broker 4 is not registered: flush.policy = .* one of ack, replicate"
    ) as caught:
        cluster.register(4)
    assert caught.value.code is ErrorCode.INVALID_CONFIG
