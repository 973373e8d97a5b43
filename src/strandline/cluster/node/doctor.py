"""Rules of `strandline doctor`: findings on settings and states that could lose data or have no effect, in files and in
a live cluster.

Each rule is a function from values to findings, without I/O; `examination` asks the cluster for the values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from strandline.client.config import ConsumerConfig, ProducerConfig
from strandline.client.types import TopicDescription, TransactionDescription
from strandline.cluster.node.authorization import open_doors
from strandline.cluster.node.config import NodeConfig
from strandline.controller.metadata.settings import BROKER_SETTINGS, settings_without_effect
from strandline.log.compiled import CONSEQUENCE, REMEDY
from strandline.proto.ids import TopicPartition
from strandline.replica.tier_config import STORE_URL

PARTITIONS_A_BROKER_MAX = 2000
"""Replicas of one broker above which its recovery and failover take seconds (row S19): measured with replication 3 on
two cores."""


FAILING_S_MAX = 60.0
"""Seconds of failing copies to the object store from which on they are a finding; a retry follows every 30 s by
default."""

SLOW_SYNC_S = 0.1
"""Seconds from which on a sync counts as slow, a bound of the histogram of syncs; a cloud disk takes a tenth of it."""
SLOW_SHARE_MAX, SYNCS_MIN = 0.05, 100
"""Maximum share of slow syncs, and minimum number of syncs for a finding: a few slow ones have harmless causes."""
IN_FLIGHT_S_MAX = 1.0
"""Seconds from which on a running sync is a finding; by default the broker's log warns then, too."""

OVERDUE_S = 30.0
"""Seconds after its timeout from which on an open transaction is a finding. Normally it is aborted, and its markers are
written, within a few seconds, even during elections."""

RISK = "risk"
NO_EFFECT = "no effect"
OPEN = "open"
SLOW = "slow"
UNCHECKED = "unchecked"


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem with one setting or state.

    Attributes:
        where: the file, topic or broker.
        setting: the setting's name and value, or the state.
        loses: what may be lost, and when; for the other kinds what does not happen, or what is unknown.
        remedy: what the operator should do.
        kind: RISK: records may be lost. NO_EFFECT: the setting was given and does nothing. OPEN: unauthorized access is
            possible (`loses` says by whom, and to what). SLOW: nothing is lost, but things take longer. UNCHECKED: it
            could not be checked.
    """

    where: str
    setting: str
    loses: str
    remedy: str
    kind: str = RISK


def judge_effects(where: str, given: Mapping[str, str], *, topic: bool) -> Iterator[Finding]:
    """Findings on settings that were given and have no effect.

    Args:
        given: values of the given settings, by name, without defaults.
        topic: they are settings of a topic, not of a broker.
    """
    for name, reason in settings_without_effect(given, topic=topic).items():
        yield Finding(where, f"{name} = {given[name]}", reason, "leave it out, and do not rely on it", NO_EFFECT)


def judge_settings(where: str, values: Mapping[str, str], *, brokers: int | None = None) -> Iterator[Finding]:
    """Findings on settings of a broker that can lose data.

    Args:
        values: values of all settings, by the broker's names.
        brokers: number of brokers; None: unknown.
    """
    if values.get("default.replication.factor") == "1" and brokers != 1:
        yield Finding(
            where,
            "default.replication.factor = 1",
            "topics created without a factor have one copy: losing that broker's disk loses all their records",
            "default.replication.factor=3, or leave it out",
        )
    yield from _judge_durability(where, values, factor=None)
    if values.get("auto.create.topics.enable") == "true":
        yield Finding(
            where,
            "auto.create.topics.enable = true",
            "a mistyped topic name makes a new topic: its records are where nobody reads them, and expire there",
            "auto.create.topics.enable=false",
        )
    if brokers == 1:
        yield Finding(
            where, "1 broker", "every record has one copy: losing the disk loses them all", "run three brokers or more"
        )


def _judge_durability(where: str, values: Mapping[str, str], *, factor: int | None) -> Iterator[Finding]:
    """Findings on settings that topics and brokers have in common. `factor`: replication factor; None: unknown."""
    min_insync = values.get("min.insync.replicas")
    if min_insync == "1" and factor != 1:
        yield Finding(
            where,
            "min.insync.replicas = 1",
            "acks=all is given while one replica alone has the record: losing that disk loses acknowledged records",
            "min.insync.replicas=2",
        )
    if values.get("unclean.leader.election.enable") == "true":
        yield Finding(
            where,
            "unclean.leader.election.enable = true",
            "a replica that lags may lead when no other can: acknowledged records that it lacks are gone for good",
            "unclean.leader.election.enable=false",
        )
    if values.get("flush.policy") == "replicate":
        yield Finding(
            where,
            "flush.policy = replicate",
            "records are acknowledged from memory: a power cut of all in-sync replicas at once loses the last ones",
            "flush.policy=ack",
        )


def judge_config(config: NodeConfig) -> Iterator[Finding]:
    """Findings on one node's file."""
    where = config.path or f"node {config.node_id}"
    values = {name: row.default or "" for name, row in BROKER_SETTINGS.items()} | config.dynamic
    yield from judge_settings(where, values)
    yield from judge_effects(where, config.dynamic, topic=False)
    voters = len(config.quorum_voters)
    if 0 < voters < 3:
        yield Finding(
            where,
            f"{voters} controller{'s' if voters > 1 else ''} in controller.quorum.voters",
            "losing one of their disks loses the metadata: topics can no longer be found though their files are there",
            "three controllers",
        )
    for path in config.log_dirs:
        if path.startswith(("/tmp/", "/var/tmp/", "/dev/shm/", "/run/")):
            yield Finding(
                where,
                f"log.dirs = {path}",
                "this directory is emptied by the system, at a reboot or before: everything stored in it is gone then",
                "a directory that lasts, such as /var/lib/strandline",
            )
    open_to_all = [listener.name for listener in config.listeners if listener.endpoint.host in ("", "0.0.0.0", "::")]
    for door in open_doors(config):
        yield Finding(where, door.setting, door.lets, door.remedy, RISK if door.has_effect else NO_EFFECT)
    if open_to_all and not config.authorizer:
        yield Finding(
            where,
            f"listeners: {', '.join(open_to_all)} on every address",
            "nobody is asked what he may do, for there is no authorizer: whoever comes in can delete topics",
            "an address of a network that you trust; or authorizer.class.name, and ssl.client.auth=required",
        )


def judge_topic(topic: TopicDescription, values: Mapping[str, str]) -> Iterator[Finding]:
    """Findings on the settings and state of a topic of a live cluster."""
    where = f"topic {topic.name}"
    factors = [len(partition.replicas) for partition in topic.partitions]
    factor = min(factors, default=0)
    if factor == 1:
        yield Finding(
            where,
            "replication factor 1",
            "one copy: losing that broker's disk loses the topic's records",
            f"make {topic.name} anew with --replication 3 and copy it",
        )
    yield from _judge_durability(where, values, factor=factor)
    leaderless = [partition.partition for partition in topic.partitions if partition.leader is None]
    if leaderless:
        yield Finding(
            where,
            f"partitions {_numbers(leaderless)} have no leader",
            "nothing can be written or read there until a replica that has all acknowledged records is back",
            f"start their brokers: strandline topic describe {topic.name}",
        )
    behind = [
        partition.partition
        for partition in topic.partitions
        if partition.leader is not None and len(partition.isr) < len(partition.replicas)
    ]
    if behind:
        yield Finding(
            where,
            f"partitions {_numbers(behind)} lack replicas in sync",
            "fewer disks than meant hold the newest records: the next failures can stop writes, or cost them",
            "start the missing brokers: strandline cluster describe",
        )


def judge_quorum(voters: int) -> Iterator[Finding]:
    """Findings on the size of a live cluster's metadata quorum."""
    if voters < 3:
        yield Finding(
            "quorum",
            f"{voters} controller{'s' if voters > 1 else ''}",
            "losing one of their disks loses the metadata: topics can no longer be found though their files are there",
            "three controllers",
        )


def judge_crowds(brokers: int, replicas: Mapping[int, int]) -> Iterator[Finding]:
    """Findings on the number of replicas of each broker of a live cluster.

    Args:
        brokers: number of brokers.
        replicas: broker -> number of its replicas.
    """
    for node_id, count in sorted(replicas.items()):
        if count > PARTITIONS_A_BROKER_MAX:
            yield Finding(
                f"broker {node_id}",
                f"{count} replicas",
                "nothing, but its restart and the failover of what it leads take seconds",
                f"fewer partitions, or more brokers (of {brokers} now)",
            )


def judge_directories(where: str, *, offline: Iterable[str], full: Mapping[str, int]) -> Iterator[Finding]:
    """Findings on the log directories in a broker's metrics. `full`: free bytes of those that are full, by path."""
    for path in offline:
        yield Finding(
            where,
            f"log directory {path} is offline",
            "a copy of each partition that lies there; what has no other replica can be neither read nor written",
            "its log says why. Mount the disk, or replace it and run strandline format again; then restart the broker",
        )
    for path, free_bytes in full.items():
        yield Finding(
            where,
            f"log directory {path} is full: {free_bytes} bytes are left",
            "nothing yet; but its replicas take no writes, and those that no other broker can lead are read only",
            "make room on that disk: strandline topic size shows what takes it",
        )


def judge_syncs(where: str, *, syncs: int, slow: int, in_flight_s: float) -> Iterator[Finding]:
    """Findings on the speed of the disks in a broker's metrics.

    Args:
        syncs: number of syncs since its start.
        slow: number of these that took longer than `SLOW_SYNC_S`.
        in_flight_s: seconds that the oldest running sync has taken so far.
    """
    loses = "nothing; but acknowledgements wait for it, and a sync beyond disk.sync.timeout.ms ends the node"
    remedy = "look at that disk (iostat -x, SMART) and at what else writes to it; strandline trace shows who waits"
    if in_flight_s > IN_FLIGHT_S_MAX:
        yield Finding(where, f"a sync has taken {in_flight_s:.1f} s by now", loses, remedy)
    if syncs >= SYNCS_MIN and slow > SLOW_SHARE_MAX * syncs:
        yield Finding(where, f"{slow} of {syncs} syncs took more than {SLOW_SYNC_S} s", loses, remedy)


def judge_installation(where: str, lacking: Mapping[str, str]) -> Iterator[Finding]:
    """Findings on an installation without its compiled parts.

    Args:
        lacking: name of each missing part -> reason.
    """
    if lacking:
        why = "; ".join(f"{name}: {reason}" for name, reason in lacking.items())
        yield Finding(where, f"compiled parts are missing ({why})", CONSEQUENCE, REMEDY, SLOW)


def judge_damage(where: str, *, rotten: int, uncleanable: int) -> Iterator[Finding]:
    """Findings on the logs in a broker's metrics. `rotten`: number of replicas with damaged parts; `uncleanable`:
    number of logs that compaction has given up."""
    if rotten:
        yield Finding(
            where,
            f"{rotten} rotten replica{'' if rotten == 1 else 's'}",
            "what has rotted is served by nobody; if no other replica has it, it is gone",
            "wait a minute: the broker fetches it from another replica. If it stays, its log names the offsets (a part "
            "of a log has rotted): restore the topic from a backup, or give up what lies before and in the hole: "
            "strandline topic trim TOPIC --before-offset NEXT_OFFSET",
        )
    if uncleanable:
        yield Finding(
            where,
            f"{uncleanable} log{'' if uncleanable == 1 else 's'} that cannot be compacted",
            "nothing yet; but these topics keep every value of each key, and fill the disk",
            "its log says why (a log is compacted no more). Once what has rotted there is healed, or the broker starts "
            "again, compaction tries again",
        )


def judge_transactions(
    described: Iterable[TransactionDescription], hanging: Iterable[tuple[TopicPartition, int, int, int]], now_ms: float
) -> Iterator[Finding]:
    """Findings on transactions that do not end, at which consumers with read_committed wait.

    Args:
        described: open and decided transactions of the coordinators.
        hanging: transactions that no coordinator will end, as (partition, producer id, first offset, timestamp in ms of
            the last record or -1).
        now_ms: wall-clock time.
    """
    for one in described:
        age_s = 0.0 if one.started_ms is None else (now_ms - one.started_ms) / 1000
        places = ", ".join(map(str, one.partitions)) or "no partition yet"
        whose = f"of producer {one.producer_id}, epoch {one.producer_epoch}, in {places}"
        since = f"since {age_s:,.0f} s, coordinator {one.coordinator.node_id}"
        where = f"transactional id {one.transactional_id}"
        if one.state == "Ongoing" and age_s > one.timeout_ms / 1000 + OVERDUE_S:
            yield Finding(
                where,
                f"a transaction {whose}, is open {since}: longer than its transaction.timeout.ms={one.timeout_ms}",
                "nothing; but readers of committed records wait at it",
                f"strandline transaction abort {one.transactional_id}",
                SLOW,
            )
        elif one.state in ("PrepareCommit", "PrepareAbort") and age_s > OVERDUE_S:
            yield Finding(
                where,
                f"a transaction {whose}, is decided ({one.state}), and not ended everywhere, {since}",
                "nothing; but readers of committed records wait at it, and its producer begins no other",
                "a leader does not take its marker: strandline topic describe shows partitions without one, and the "
                "coordinator's log says which",
                SLOW,
            )
    for place, producer_id, start, last_ms in hanging:
        silent = "" if last_ms < 0 else f", silent for {(now_ms - last_ms) / 1000:,.0f} s"
        yield Finding(
            str(place),
            f"a transaction of producer {producer_id} is open from offset {start} on{silent}, and no coordinator will "
            f"end it",
            "nothing; but readers of committed records wait at it for ever, and compaction does",
            f"strandline transaction abort --topic {place.topic} --partition {place.partition} --start-offset {start}",
            SLOW,
        )


def judge_tier(where: str, *, failing_s: float, waiting: int, without_store: int) -> Iterator[Finding]:
    """Findings on tiered storage in a broker's metrics.

    Args:
        failing_s: seconds for which copies of a partition that it leads have failed.
        waiting: number of closed segments that it has not copied.
        without_store: number of partitions of tiered topics, if the broker has no object store.
    """
    if waiting and failing_s >= FAILING_S_MAX:
        yield Finding(
            where,
            f"{waiting} segment{'' if waiting == 1 else 's'} not copied; copies have failed for {failing_s:.0f} s",
            "nothing yet: they stay on the disks, whatever local.retention says, until those are full",
            "its log says why (a segment was not copied to the object store): the store is away, or refuses",
        )
    if without_store:
        yield Finding(
            where,
            f"{without_store} partition{'' if without_store == 1 else 's'} of tiered topics, and no {STORE_URL}",
            "nothing; but what it leads is not copied and fills the disks, and old records cannot be read from it",
            f"{STORE_URL} as on the other nodes",
        )


def judge_stores(configs: Sequence[NodeConfig]) -> Iterator[Finding]:
    """Findings on files of several nodes of one cluster that name different object stores."""
    if len({config.tier.url for config in configs}) > 1:
        for config in configs:
            yield Finding(
                config.path or f"node {config.node_id}",
                f"{STORE_URL} = {config.tier.url}" if config.tier.url else f"no {STORE_URL}",
                "nothing; but old records of tiered topics cannot be read where another node than their leader of that "
                "time leads: the nodes differ in it",
                f"the same {STORE_URL} on every node, controllers too",
            )


def judge_producer(config: ProducerConfig) -> Iterator[Finding]:
    """Findings on producer settings (of any client, as the names are Kafka's) that can lose, repeat or reorder
    records."""
    where = "producer"
    if config.acks_number == 0:
        yield Finding(
            where,
            "acks = 0",
            "every record that a broker refuses, or that is under way when a connection breaks, and nobody hears of it",
            "acks=all",
        )
    elif config.acks_number == 1:
        yield Finding(
            where,
            "acks = 1",
            "what only the leader had when it died: acknowledged records that no replica had copied yet",
            "acks=all",
        )
    in_flight = config.max_in_flight_requests_per_connection
    if not config.idempotent and config.acks_number != 0 and config.retries > 0:
        yield Finding(
            where,
            "enable.idempotence = false with retries",
            "nothing, but a retry after a lost answer stores the records a second time",
            "enable.idempotence=true (with acks=all), or retries=0 and handle the errors",
        )
        if in_flight > 1:
            yield Finding(
                where,
                f"max.in.flight.requests.per.connection = {in_flight} without idempotence",
                "the order: a request that fails and is sent again lands behind those sent after it",
                "enable.idempotence=true, which keeps order with up to 5; or max.in.flight.requests.per.connection=1",
            )


def judge_consumer(config: ConsumerConfig) -> Iterator[Finding]:
    """Findings on consumer settings (of any client, as the names are Kafka's) that can lose or skip records."""
    where = "consumer"
    if config.enable_auto_commit:
        yield Finding(
            where,
            "enable.auto.commit = true (the default)",
            "in most clients, what was handed out and not handled yet when the commit ran and the process died: it is "
            "not read again (strandline.client alone commits no more than is done)",
            "enable.auto.commit=false, and commit behind what is handled",
        )
    if config.auto_offset_reset == "latest":
        yield Finding(
            where,
            "auto.offset.reset = latest (the default)",
            "what was written before a new group's first commit, or to a new partition before it was found: never read",
            "auto.offset.reset=earliest",
        )


def _numbers(values: list[int]) -> str:
    shown = ", ".join(str(value) for value in values[:10])
    return shown if len(values) <= 10 else f"{shown} and {len(values) - 10} more"
