"""What a registration says of its logs, and who may lead after a crash (docs/correctness.md)."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from strandline.controller import api, broker_api
from strandline.controller.broker_api import ReplicaOffsets, ReplicaSet, TopicFindings, TopicReplicaSet
from strandline.controller.machine import brokers
from strandline.controller.metadata.records import PartitionChangeRecord
from strandline.controller.operations import REGISTER_BROKER
from strandline.log.findings import LogCondition
from strandline.log.incarnations import incarnation_of_epoch
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import NO_BROKER_EPOCH, NO_NODE, ZERO_UUID, Endpoint

INTACT, CUT, LACKING, AWAY = LogCondition
ABSENT = None


def crashed(machine_cluster: Any, **configs: str) -> Any:
    """Topic t on 1, 2 and 3; all crash, 1 first: with min.insync.replicas 2 the eligible are 2 and 3."""
    cluster = machine_cluster(3)
    cluster.create(**configs)
    for node in (1, 2, 3):
        cluster.fence(node)
    return cluster


# --- the table: what two members of the last ISR find -----------------------------------------------------------------

FINDINGS = [INTACT, CUT, LACKING, ABSENT, "away"]


@pytest.mark.parametrize("clean", [False, True], ids=["killed", "stopped cleanly"])
@pytest.mark.parametrize(
    ("second", "third"),
    list(itertools.product(FINDINGS, FINDINGS)),
    ids=lambda found: found if isinstance(found, str) else "absent" if found is None else found.name.lower(),
)
def test_two_members_of_the_last_isr(machine_cluster: Any, second: Any, third: Any, clean: bool) -> None:
    """2 and 3 were in sync last; 1, which was not, is back and whole. After a clean stop an intact one leads; after any
    other the greatest log of those that are back (rule B30).

    | one of them          | the other                     | who leads             |
    |----------------------|-------------------------------|-----------------------|
    | intact               | intact, or cut                | see above             |
    | intact               | anything else                 | the intact one        |
    | cut or absent        | away                          | nobody                |
    | cut                  | cut or absent                 | the greatest log      |
    | cut                  | lacking                       | the cut one           |
    | absent               | absent or lacking             | nobody: 1 holds more  |
    | lacking or away      | lacking or away               | nobody                |
    """
    cluster = crashed(machine_cluster)
    found = {2: second, 3: third}
    cluster.logs = {(node, "t", 0): (-1, 0) if what is ABSENT else (0, 10 + node) for node, what in found.items()}
    cluster.start(1)
    for node, what in found.items():
        if what != "away":
            epoch = cluster.epoch(node) if clean else NO_BROKER_EPOCH
            cluster.start(node, found=what, previous_broker_epoch=epoch)
    for node in (1, 2, 3):
        if cluster.image.is_active(node):
            cluster.beat(node)
    cluster.wait_out()
    info = cluster.partition()
    intact = [node for node, what in found.items() if what is INTACT]
    cut = [node for node, what in found.items() if what is CUT]
    if intact and not clean:
        assert info.leader == max(intact + cut)
    elif intact:
        assert info.leader == intact[0]
    elif cut and "away" not in found.values():
        assert info.leader == cut[-1]
    else:
        assert info.leader == NO_NODE
    assert not info.recovering
    assert 1 not in (*info.isr, *info.eligible_leader_replicas, *info.last_known_elr)
    for node, what in found.items():
        if what is LACKING:
            assert node not in (*info.isr, *info.eligible_leader_replicas, *info.last_known_elr)


@pytest.mark.parametrize("what", [INTACT, CUT, LACKING, ABSENT])
@pytest.mark.parametrize("back", [True, False], ids=["before it was fenced", "after it was fenced"])
def test_the_only_member_at_min_insync_1(machine_cluster: Any, what: LogCondition | None, back: bool) -> None:
    """min.insync.replicas 1: the last ISR is one broker, and nobody else is waited for; unless it lacks what it had."""
    cluster = machine_cluster(3)
    cluster.create(min_insync_replicas="1")
    cluster.alter_isr([1])
    if what is ABSENT:
        cluster.logs = {(node, "t", 0): (-1, 0) for node in (1, 2, 3)}
    if back:
        cluster.now_ms = 60_000.0
        for node in (2, 3):
            cluster.beat(node)
    else:
        cluster.fence(1)
        assert cluster.partition().eligible_leader_replicas == (1,)
    cluster.start(1, found=what)
    for node in (2, 3):
        cluster.beat(node)
    info = cluster.partition()
    assert (info.leader, info.recovering) == (NO_NODE if what is LACKING else 1, False)
    assert (info.eligible_leader_replicas, info.last_known_elr) == ((), ())


def cannot_serve(cluster: Any) -> ReplicaSet:
    """What a broker says that cannot serve its replica of t."""
    return ReplicaSet((TopicReplicaSet(cluster.image.topics["t"].topic_id, (0,)),))


def test_a_member_whose_directory_is_away(machine_cluster: Any) -> None:
    """One of several directories is offline: what was synced there is still on it, so the member stays eligible. It is
    not elected before a later start has found the log intact."""
    cluster = crashed(machine_cluster, min_insync_replicas="2")
    assert cluster.partition().eligible_leader_replicas == (2, 3)
    cluster.register(2, found=AWAY)
    cluster.beat(2, unserved=cannot_serve(cluster), offsets=())
    info = cluster.partition()
    assert (info.leader, info.eligible_leader_replicas) == (NO_NODE, (2, 3))
    cluster.fence(2)
    cluster.start(2, found=INTACT)
    cluster.wait_out()
    assert cluster.partition().leader == 2


def test_a_member_whose_directory_was_replaced(machine_cluster: Any) -> None:
    """It counts for nothing, though the broker's first directory is the one that it was."""
    cluster = crashed(machine_cluster, min_insync_replicas="2")
    cluster.register(2, found=AWAY)
    cluster.start(2, found=LACKING)
    info = cluster.partition()
    assert (info.leader, info.eligible_leader_replicas) == (NO_NODE, (3,))


def test_a_member_whose_directory_is_away_where_acks_are_not_synced(machine_cluster: Any) -> None:
    """Under flush.policy=replicate it is in doubt, as after any unclean stop."""
    cluster = machine_cluster(3, flush_policy="replicate")
    cluster.create(min_insync_replicas="2")
    for node in (1, 2, 3):
        cluster.fence(node)
    cluster.register(2, found=AWAY, previous_broker_epoch=cluster.epoch(2))
    assert 2 not in cluster.partition().eligible_leader_replicas


# --- schedules of registrations and elections -------------------------------------------------------------------------


def test_a_report_completes_the_election(machine_cluster: Any) -> None:
    """The last one in doubt is unfenced before its replica is hosted: what it reports later elects."""
    cluster = crashed(machine_cluster)
    cluster.start(2, found=CUT)
    cluster.register(3, found=CUT)
    cluster.beat(3, offsets=())
    assert cluster.image.brokers[3].active
    assert not cluster.partition().has_leader
    cluster.beat(3)
    info = cluster.partition()
    assert (info.leader, info.isr, info.last_known_elr, info.recovering) == (2, (2,), (3,), False)
    reasons = [record.reason for record in cluster.log if isinstance(record, PartitionChangeRecord)]
    assert reasons[-1] == "broker 3 reported where its log ends: elected for the greatest log of all members in doubt"


def test_a_controller_fails_over_between_two_registrations(machine_cluster: Any) -> None:
    """What was reported dies with it, who is in doubt does not: all report to the new one before anybody leads."""
    cluster = crashed(machine_cluster)
    cluster.start(2, found=CUT)
    cluster.fail_over()
    cluster.start(3, found=CUT)
    assert not cluster.partition().has_leader, "2 has not said to this controller where its log ends"
    cluster.beat(2)
    assert cluster.partition().leader == 2


@pytest.mark.parametrize(
    "stale", [{"leader_epoch": 1}, {"leader_epoch": -1}], ids=["while somebody led", "before it knew any"]
)
def test_a_report_of_another_leader_epoch_elects_nobody(machine_cluster: Any, stale: dict[str, int]) -> None:
    """It was made while the log could still change: only one made since nobody leads counts."""
    cluster = crashed(machine_cluster)
    assert cluster.partition().leader_epoch > 1
    cluster.start(2, found=CUT)
    [fresh] = cluster.leaderless_logs(3)
    cluster.register(3, found=CUT)
    cluster.beat(3, offsets=(replace(fresh, **stale),))
    assert not cluster.partition().has_leader
    cluster.beat(3, offsets=(fresh,))
    assert cluster.partition().has_leader


def test_a_report_of_an_earlier_process_elects_nobody(machine_cluster: Any) -> None:
    """A member restarts twice: what its first process reported is not what the second one has, which finds nothing."""
    cluster = crashed(machine_cluster)
    cluster.start(3, found=CUT)
    cluster.fence(3)
    cluster.logs[3, "t", 0] = (0, 2)
    cluster.register(3, found=ABSENT)
    cluster.beat(3, offsets=())
    cluster.logs[2, "t", 0] = (0, 9)
    cluster.start(2, found=CUT)
    assert not cluster.partition().has_leader
    cluster.beat(3)
    assert cluster.partition().leader == 2


def test_a_member_in_doubt_stays_so_when_its_log_is_found_intact(machine_cluster: Any) -> None:
    """It cut its tail in an earlier life, which the controller knows; the next one finds nothing to cut."""
    cluster = crashed(machine_cluster)
    cluster.start(2, found=CUT)
    cluster.fence(2)
    cluster.start(2, found=INTACT)
    info = cluster.partition()
    assert (info.leader, info.eligible_leader_replicas, info.last_known_elr) == (NO_NODE, (3,), (2,))


def test_a_member_in_doubt_that_lost_its_log_is_waited_for_no_more(machine_cluster: Any) -> None:
    """Its registration alone lets the other one lead."""
    cluster = crashed(machine_cluster)
    cluster.start(2, found=CUT)
    cluster.start(3, found=CUT, directory_id=UUID(int=99))
    info = cluster.partition()
    assert (info.leader, info.last_known_elr) == (2, ())


def test_who_led_for_the_greatest_log_and_dies_again(machine_cluster: Any) -> None:
    """It may have had alone what was acknowledged: nobody takes its place while it is away."""
    cluster = crashed(machine_cluster)
    cluster.logs[2, "t", 0] = (0, 12)
    cluster.start(2, found=CUT)
    cluster.start(3, found=CUT)
    assert cluster.partition().leader == 2
    cluster.fence(2)
    cluster.beat(3)
    info = cluster.partition()
    assert (info.leader, info.eligible_leader_replicas, info.last_known_elr) == (NO_NODE, (2,), (3,))
    cluster.start(2, found=INTACT)
    assert cluster.partition().leader == 2
    cluster.fence(2)
    cluster.start(2, found=CUT)
    cluster.beat(3)
    assert cluster.partition().leader == 2, "all in doubt are back"
    cluster.fence(2)
    cluster.start(2, found=LACKING)
    cluster.beat(3)
    assert cluster.partition().leader == 3, "who lost its log is waited for no more"


# --- registrations ----------------------------------------------------------------------------------------------------


def test_an_older_copy_of_the_directory_counts_for_nothing(machine_cluster: Any) -> None:
    """It has never heard of the process that registered last: whatever it finds intact is of the past."""
    cluster = crashed(machine_cluster)
    old = UUID(int=12345)
    request = cluster.registration(2)
    request = replace(request, lives=(old, request.incarnation_id))
    cluster.run(brokers.register_broker(cluster.state, request, len(cluster.log), 0))
    cluster.beat(2)
    info = cluster.partition()
    assert (info.leader, info.eligible_leader_replicas, info.last_known_elr) == (NO_NODE, (3,), ())


@pytest.mark.parametrize("since", [0, 1], ids=["the last one that registered", "another one"])
def test_a_life_that_left_its_broker_epoch_alone(machine_cluster: Any, since: int) -> None:
    """Schedule 94: an earlier build, which keeps no lives, stopped in good order. Its clean mark has the epoch;
    an older copy of such a directory names one of the past."""
    cluster = crashed(machine_cluster)
    epoch = cluster.epoch(2) + since
    request = cluster.registration(2, previous_broker_epoch=epoch)
    request = replace(request, lives=(incarnation_of_epoch(epoch), request.incarnation_id))
    cluster.run(brokers.register_broker(cluster.state, request, len(cluster.log), 0))
    cluster.beat(2)
    cluster.wait_out()
    assert cluster.partition().leader == (NO_NODE if since else 2)


def test_a_life_whose_registration_nobody_heard_of_is_no_copy(machine_cluster: Any) -> None:
    """The reply was lost and the process died: the next one sends both ids."""
    cluster = crashed(machine_cluster)
    unheard = cluster.registration(2)
    cluster.run(brokers.register_broker(cluster.state, unheard, len(cluster.log), 0))
    request = cluster.registration(2)
    request = replace(request, lives=(*unheard.lives, request.incarnation_id))
    cluster.run(brokers.register_broker(cluster.state, request, len(cluster.log), 0))
    cluster.beat(2)
    cluster.wait_out()
    assert cluster.partition().leader == 2


def test_a_registration_of_the_past_changes_nothing(machine_cluster: Any) -> None:
    """The request of an earlier process comes late, or again, while the next one is still fenced: it names another
    incarnation than is registered, and would call the directory an older copy."""
    cluster = crashed(machine_cluster)
    late = cluster.registration(2, found=LACKING)
    epoch = cluster.register(2)
    before = len(cluster.log)
    reply = cluster.run(brokers.register_broker(cluster.state, late, len(cluster.log), 0))
    assert (reply.broker_epoch, reply.registered) == (NO_BROKER_EPOCH, cluster.image.brokers[2].incarnation_id)
    assert (len(cluster.log), cluster.epoch(2)) == (before, epoch)
    again = replace(late, replaces=reply.registered)
    assert cluster.run(brokers.register_broker(cluster.state, again, len(cluster.log), 0)).broker_epoch > epoch


def test_a_directory_of_an_older_topic_of_that_name_is_no_finding(machine_cluster: Any) -> None:
    """t was deleted and made anew: what is found intact is of another topic id."""
    cluster = crashed(machine_cluster)
    [finding] = cluster.findings(2, lambda _: INTACT)
    cluster.start(2, findings=(replace(finding, topic_id=UUID(int=77)),))
    info = cluster.partition()
    assert (info.leader, info.eligible_leader_replicas, info.last_known_elr) == (NO_NODE, (3,), (2,))


@pytest.mark.parametrize(("condition", "in_doubt"), [(LACKING, ()), (CUT, (2,))])
def test_a_missing_directory_is_told_by_name(
    machine_cluster: Any, condition: LogCondition, in_doubt: tuple[int, ...]
) -> None:
    """The checkpoints name it, or an earlier start does; nothing tells its topic's id any more."""
    cluster = crashed(machine_cluster)
    cluster.start(2, findings=(TopicFindings("t", ZERO_UUID, (0,), (-1,), (-1,), (condition,)),))
    info = cluster.partition()
    assert (info.leader, info.eligible_leader_replicas, info.last_known_elr) == (NO_NODE, (3,), in_doubt)


def test_records_of_a_leader_epoch_that_there_has_not_been(machine_cluster: Any) -> None:
    """The epoch in a batch's header is under no CRC: a bit of it turns over, and the log would outrank every other."""
    cluster = crashed(machine_cluster)
    cluster.logs[2, "t", 0] = (cluster.partition().leader_epoch + 1, 10)
    cluster.start(2)
    info = cluster.partition()
    assert (info.leader, info.eligible_leader_replicas, info.last_known_elr) == (NO_NODE, (3,), ())


def test_findings_that_do_not_fit_together_are_refused(machine_cluster: Any) -> None:
    """Columns of unequal length: nothing is changed."""
    cluster = crashed(machine_cluster)
    [finding] = cluster.findings(2, lambda _: INTACT)
    with pytest.raises(KafkaError) as caught:
        cluster.register(2, findings=(replace(finding, last_epochs=()),))
    assert caught.value.code is ErrorCode.INVALID_REQUEST


def test_ten_thousand_findings_are_cheap() -> None:
    """Packed columns: a registration of 10,000 partitions stays far below a frame."""
    numbers = tuple(range(10_000))
    topic = TopicFindings("t", UUID(int=1), numbers, (10**9,) * 10_000, (50,) * 10_000, (INTACT,) * 10_000)
    request = broker_api.RegisterBrokerRequest("c", 1, UUID(int=2), {}, ("h", 1), findings=(topic,))  # type: ignore[arg-type]
    request = replace(request, internal=Endpoint("h", 1))
    data = REGISTER_BROKER.method.request.encode(request)
    assert len(data) < 150_000
    assert REGISTER_BROKER.method.request.decode(data) == request


@pytest.mark.parametrize("where", ["file", "metadata"])
def test_the_flush_policy_is_on_record(machine_cluster: Any, where: str) -> None:
    """The file says it, or the metadata do, which come first; a change counts from the next registration on."""
    cluster = machine_cluster(3, flush_policy="replicate" if where == "file" else "")
    if where == "metadata":
        cluster.set_config("flush.policy", "replicate", None)
        assert not cluster.image.brokers[1].acks_unsynced
        cluster.fence(1)
        cluster.start(1)
    cluster.create("t", [[1, 2]])
    assert cluster.image.brokers[1].acks_unsynced
    cluster.set_config("flush.policy", "ack", None)
    for node in (2, 1):
        cluster.fence(node)
    assert cluster.partition().eligible_leader_replicas == (1, 2)
    cluster.register(1)
    assert cluster.partition().eligible_leader_replicas == (2,), "what it had acknowledged until now was not synced"
    assert not cluster.image.brokers[1].acks_unsynced


def test_one_broker_that_acks_unsynced_is_enough(machine_cluster: Any) -> None:
    """It may have led: then what was acknowledged was in memory alone, and an intact log proves nothing."""
    cluster = machine_cluster(3)
    cluster.fence(3)
    cluster.start(3, flush_policy="replicate")
    cluster.create()
    for node in (3, 1, 2):
        cluster.fence(node)
    cluster.start(1)
    info = cluster.partition()
    assert (info.leader, info.eligible_leader_replicas, info.last_known_elr) == (NO_NODE, (2,), (2,))


# --- what cannot be served --------------------------------------------------------------------------------------------


def unserved(cluster: Any, *numbers: int) -> ReplicaSet:
    return ReplicaSet((TopicReplicaSet(cluster.image.topics["t"].topic_id, numbers),) if numbers else ())


def test_a_replica_that_cannot_be_served_loses_the_leadership_at_once(machine_cluster: Any) -> None:
    """Schedule 56: the node lives and leads other partitions; of this one the leadership moves in the same turn."""
    cluster = machine_cluster(3)
    cluster.create("t", [[1, 2, 3], [1, 2, 3]])
    cluster.beat(1, unserved=unserved(cluster, 0))
    info = cluster.partition()
    assert (info.leader, info.isr, info.eligible_leader_replicas) == (2, (2, 3), ())
    assert cluster.partition(number=1).leader == 1
    assert cluster.alter_isr([2, 3, 1]).error is ErrorCode.INELIGIBLE_REPLICA


def test_a_replica_that_cannot_be_served_stays_eligible_below_min_isr(machine_cluster: Any) -> None:
    """What it synced is still on its disk; but it is not elected before it has been repaired."""
    cluster = machine_cluster(3)
    cluster.create()
    for node in (2, 3):
        cluster.fence(node)
    cluster.beat(1, unserved=unserved(cluster, 0))
    info = cluster.partition()
    assert (info.leader, info.isr, info.eligible_leader_replicas) == (NO_NODE, (), (1, 3))
    cluster.beat(1)
    assert not cluster.partition().has_leader
    cluster.fence(1)
    cluster.start(1)
    cluster.wait_out()
    assert cluster.partition().leader == 1, "a new process, and it has not said so again"


def test_an_offline_replica_is_not_elected_when_its_broker_is_unfenced(machine_cluster: Any) -> None:
    """Schedule 56: the heartbeat that unfences it says what it cannot serve."""
    cluster = machine_cluster(3)
    cluster.create()
    for node in (1, 2, 3):
        cluster.fence(node)
    cluster.register(2)
    cluster.beat(2, unserved=unserved(cluster, 0))
    assert cluster.image.brokers[2].active
    assert not cluster.partition().has_leader
    cluster.start(3)
    cluster.wait_out()
    assert cluster.partition().leader == 3
    assert cluster.elect(api.ElectionKind.PREFERRED)[0].error is ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE


def test_a_new_controller_hears_of_it_with_the_first_heartbeat(machine_cluster: Any) -> None:
    """Soft state: it is told anew to each controller, and acted upon."""
    cluster = machine_cluster(3)
    cluster.create()
    cluster.fail_over()
    assert cluster.partition().leader == 1
    cluster.beat(1, unserved=unserved(cluster, 0))
    assert cluster.partition().leader == 2


def test_a_replica_that_can_be_served_again_is_elected(machine_cluster: Any) -> None:
    """A full disk got room: nobody else is left to lead."""
    cluster = machine_cluster(3)
    cluster.create()
    for node in (2, 3):
        cluster.fence(node)
    cluster.beat(1, unserved=unserved(cluster, 0))
    assert not cluster.partition().has_leader
    cluster.beat(1, unserved=unserved(cluster))
    assert cluster.partition().leader == 1


def test_an_unserved_member_in_doubt_is_waited_for(machine_cluster: Any) -> None:
    """Its log may be the greatest: whether it is, nobody can say."""
    cluster = crashed(machine_cluster)
    cluster.start(2, found=CUT)
    cluster.register(3, found=CUT)
    cluster.beat(3, unserved=unserved(cluster, 0))
    assert not cluster.partition().has_leader
    offsets: tuple[ReplicaOffsets, ...] = ()
    cluster.beat(3, unserved=unserved(cluster), offsets=offsets)
    assert not cluster.partition().has_leader or cluster.partition().leader in (2, 3)


def test_a_stopping_broker_leaves_what_it_cannot_serve(machine_cluster: Any) -> None:
    """Both are said in one heartbeat: one change of each partition."""
    cluster = machine_cluster(3)
    cluster.create("t", [[1, 2, 3], [1, 2, 3]])
    reply = cluster.beat(1, want_shutdown=True, unserved=unserved(cluster, 0))
    assert reply.in_controlled_shutdown or reply.should_shut_down
    assert [info.leader for _, info in cluster.image.partitions()] == [2, 2]
