"""Invariants of an explored partition: those of KIP-966's specification, and those of rules B (replication)."""

from __future__ import annotations

from typing import Any, NamedTuple

from lab.explore.brokers import NOTHING, Broker
from lab.explore.controllers import NOTHING_REPORTED, Metadata, Reported
from lab.explore.logs import Entry
from lab.explore.model import NODES, Violation
from strandline.cluster.node.replica_feed import replica_offsets, unserved_replicas
from strandline.controller.metadata.records import PartitionRecord
from strandline.log.findings import LogCondition
from strandline.proto.ids import NO_NODE, NodeId
from strandline.replica.states import Role


class BrokerView(NamedTuple):
    """View of a broker at one instant, as far as anything is decided or judged by it.

    Attributes:
        life: the broker epoch; 0 while no process runs that has registered.
        knows: (leader epoch, partition epoch, the brokers) as far as the metadata have arrived; None: not yet.
        follows: the leader that it has a stream to, or would open one to; connected: it has.
        says: there is something to tell the leader; offers: followers for which there is something.
        proposes: a change of the ISR waits to be sent; asked: one is on its way.
        lagging: members of the ISR that are behind the leader's log end.
        retries: a refused fetch is to be tried again.
        slow: what takes longer here than elsewhere; reported: what its heartbeats say.
        found, ruined, zeroed: see `Broker`.
        torn: how many unsynced writes may be whole where the next one is half done.
    """

    life: int
    role: Role | None
    knows: Any
    entries: tuple[Entry, ...]
    disk: tuple[Entry, ...]
    unsynced: int
    syncing: bool
    high_watermark: int
    leads: int
    isr: tuple[NodeId, ...]
    maximal_isr: tuple[NodeId, ...]
    follows: NodeId | None
    connected: bool
    says: bool
    retries: bool
    offers: tuple[NodeId, ...]
    links: tuple[tuple[NodeId, int], ...]
    proposes: bool
    asked: bool
    lagging: tuple[NodeId, ...]
    slow: tuple[str, ...]
    reported: Reported
    found: LogCondition
    ruined: bool
    zeroed: bool
    torn: tuple[int, ...]

    @property
    def place(self) -> tuple[Any, ...]:
        """Rank of its turn, where several brokers can do something: not by their names, which mean nothing."""
        state = (len(self.entries), len(self.disk), self.unsynced, self.high_watermark, self.connected, self.says)
        return (self.leads < 0, self.life, *state, self.retries, self.slow, self.reported)

    @property
    def up(self) -> bool:
        """True if a process runs and has registered."""
        return self.life > 0


DOWN = BrokerView(
    life=0,
    role=None,
    knows=None,
    entries=(),
    disk=(),
    unsynced=0,
    syncing=False,
    high_watermark=0,
    leads=-1,
    isr=(),
    maximal_isr=(),
    follows=None,
    connected=False,
    says=False,
    retries=False,
    offers=(),
    links=(),
    proposes=False,
    asked=False,
    lagging=(),
    slow=(),
    reported=NOTHING_REPORTED,
    found=LogCondition.INTACT,
    ruined=False,
    zeroed=False,
    torn=(),
)


def look(broker: Broker) -> BrokerView:
    """The present state of a broker."""
    log = broker.log
    stored = DOWN._replace(
        entries=log.entries,
        disk=log.disk,
        found=LogCondition(broker.found),
        ruined=broker.ruined,
        zeroed=broker.zeroed,
    )
    if not broker.up:
        return stored
    partition = broker.partition
    running = stored._replace(
        life=int(broker.broker_epoch),
        unsynced=len(log.unsynced),
        syncing=log.syncing >= 0,
        asked=broker.asked != NOTHING,
        slow=broker.slow,
        torn=log.tearable,
    )
    if partition is None:
        return running
    core = partition.leader
    return running._replace(
        role=partition.role,
        knows=_known(broker),
        high_watermark=partition.high_watermark,
        leads=-1 if core is None else int(core.leader_epoch),
        isr=() if core is None else tuple(core.isr),
        maximal_isr=() if core is None else tuple(core.maximal_isr),
        proposes=broker.proposes,
        lagging=() if core is None else _lagging(core),
        reported=_reported(broker),
        **_streams(broker),
    )


def _reported(broker: Broker) -> Reported:
    hosted: Any = broker
    unserved = bool(unserved_replicas(hosted).topics)
    for one in replica_offsets(hosted):
        return Reported(unserved, int(one.leader_epoch), int(one.last_epoch), int(one.log_end_offset))
    return NOTHING_REPORTED._replace(unserved=unserved)


def _known(broker: Broker) -> Any:
    partition = broker.partition
    assert partition is not None
    brokers = tuple(
        (node, int(one.broker_epoch), one.fenced, one.in_controlled_shutdown)
        for node, one in sorted(broker.brokers.items())
    )
    epoch = partition.state.partition_epoch
    return (int(partition.state.leader_epoch), int(epoch), brokers)


def published(metadata: Metadata) -> Any:
    """Knowledge of a broker that has heard of everything: compare with `BrokerView.knows`."""
    brokers = tuple(
        (node, int(one.broker_epoch), one.fenced, one.in_controlled_shutdown)
        for node, one in sorted(metadata.brokers.items())
    )
    return (int(metadata.partition.leader_epoch), int(metadata.partition.partition_epoch), brokers)


def _lagging(core: Any) -> tuple[NodeId, ...]:
    return tuple(
        node
        for node, follower in sorted(core.followers.items())
        if follower.in_isr and follower.fetch_offset != core.log_end_offset and core.pending is None
    )


def _streams(broker: Broker) -> dict[str, Any]:
    """Frames to be said on streams."""
    streams, fetcher = broker.streams, broker.fetcher
    assert streams is not None
    found: dict[str, Any] = {}
    if fetcher is not None:
        stream: Any = fetcher._stream
        found["follows"] = fetcher.leader_id
        found["connected"] = stream is not None and not stream.closed
        found["says"] = found["connected"] and bool(fetcher._requests or fetcher._acks)
        found["retries"] = bool(fetcher._waiting)
    offers = []
    for node, link in sorted(streams._links.items()):
        if link._queue or link._catch_up or _risen(broker, node):
            offers.append(node)
    found["offers"] = tuple(offers)
    found["links"] = tuple((node, int(link.broker_epoch)) for node, link in sorted(streams._links.items()))
    return found


def _risen(broker: Broker, node: Any) -> bool:
    partition, shared = broker.partition, broker.shared
    if partition is None or partition.leader is None or shared is None:
        return False
    if partition.send_high_watermark not in shared.watermarks._calls:
        return False
    subscription = partition.subscriptions.get(node)
    return subscription is not None and subscription.sent_high_watermark < partition.leader.high_watermark


class World(NamedTuple):
    """World that all brokers share.

    Attributes:
        metadata: as committed.
        committed: every record that was below any leader's high watermark.
    """

    metadata: Metadata
    committed: tuple[Entry, ...] = ()


def judge_step(node: NodeId, before: BrokerView, after: BrokerView, trouble: str) -> Violation | None:
    """Judge one step of one broker, by what it may not do whatever the others are."""
    if trouble:
        return Violation("CommittedRecordsAreKept", f"{node}: {trouble}")
    if before.life == after.life and after.high_watermark < before.high_watermark:
        return Violation(
            "MonotonicHighWatermark",
            f"the high watermark of {node} falls from {before.high_watermark} to {after.high_watermark}",
        )
    if after.high_watermark > len(after.entries):
        return Violation(
            "MonotonicHighWatermark",
            f"{node} has high watermark {after.high_watermark}, its log ends at {len(after.entries)}",
        )
    return None


def judge(world: World, looks: tuple[BrokerView, ...]) -> World | Violation:
    """The world with what is committed now, or what is broken."""
    committed = world.committed
    for node, one in zip(NODES, looks, strict=True):
        if one.up:
            shown = one.entries[: one.high_watermark]
            if shown[: len(committed)] != committed[: len(shown)]:
                return Violation(
                    "ConsistentRead",
                    f"{node} shows {tell(shown)} below its high watermark, where {tell(committed)} is committed",
                )
            if len(shown) > len(committed):
                committed = shown
    partition = world.metadata.partition
    return (
        _candidates(world.metadata, looks, committed)
        or _in_doubt(partition, looks, committed)
        or _leaders(partition, looks, committed)
        or _logs_match(looks)
        or (world if committed == world.committed else world._replace(committed=committed))
    )


def _candidates(metadata: Metadata, looks: tuple[BrokerView, ...], committed: tuple[Entry, ...]) -> Violation | None:
    """LeaderCandidateCompleteness: who may be elected has everything committed, on its disk. Whose disk was ruined is
    elected only once it has registered, and said so; one that was zeroed, only as one whose end nothing proves.
    """
    partition = metadata.partition
    for node in (*partition.isr, *partition.eligible_leader_replicas):
        one = looks[node - 1]
        if one.ruined or (one.zeroed and node in metadata.unproven and node not in partition.isr):
            continue
        kind = "ISR" if node in partition.isr else "ELR"
        if one.entries[: len(committed)] != committed:
            return Violation(
                "LeaderCandidateCompleteness",
                f"{node} in the {kind} holds {tell(one.entries)}, and {tell(committed)} is committed",
            )
        if one.disk[: len(committed)] != committed:
            return Violation(
                "CommittedIsDurable",
                f"the disk of {node} in the {kind} holds {tell(one.disk)}, and {tell(committed)} is committed",
            )
    return None


def _in_doubt(
    partition: PartitionRecord, looks: tuple[BrokerView, ...], committed: tuple[Entry, ...]
) -> Violation | None:
    """InDoubtCompleteness: where the ISR is empty, one of the eligible, or of the members in doubt, has everything
    committed.
    NoCommittedRecordLostGlobally: some disk has it."""
    holders = [node for node, one in zip(NODES, looks, strict=True) if one.disk[: len(committed)] == committed]
    if not holders:
        return Violation("NoCommittedRecordLostGlobally", f"no disk holds {tell(committed)}, which is committed")
    members = (*partition.eligible_leader_replicas, *partition.last_known_elr)
    if members and not partition.isr and not set(members) & set(holders):
        return Violation(
            "InDoubtCompleteness", f"none of {_nodes(members)} in doubt holds {tell(committed)}, which is committed"
        )
    return None


def _leaders(
    partition: PartitionRecord, looks: tuple[BrokerView, ...], committed: tuple[Entry, ...]
) -> Violation | None:
    """OneLeaderPerLeaderEpoch, LeaderCompleteness, MaximalIsr."""
    led: dict[int, NodeId] = {}
    for node, one in zip(NODES, looks, strict=True):
        if one.leads < 0:
            continue
        if one.leads in led:
            return Violation("OneLeaderPerLeaderEpoch", f"{led[one.leads]} and {node} lead epoch {one.leads}")
        led[one.leads] = node
        if one.leads != partition.leader_epoch or partition.leader == NO_NODE:
            continue
        if one.entries[: len(committed)] != committed:
            return Violation(
                "LeaderCompleteness",
                f"{node} leads epoch {one.leads} with {tell(one.entries)}, and {tell(committed)} is committed",
            )
        beyond = set(partition.isr) - set(one.maximal_isr)
        if beyond:
            return Violation(
                "MaximalIsr",
                f"the committed ISR {_nodes(partition.isr)} has members that leader {node} does not wait for: "
                f"{_nodes(one.maximal_isr)}",
            )
    return None


def _logs_match(looks: tuple[BrokerView, ...]) -> Violation | None:
    """LogMatching: where two logs have the same leader epoch at an offset they are equal up to there."""
    for place, one in enumerate(looks):
        for other in looks[place + 1 :]:
            common = [
                offset
                for offset, (mine, theirs) in enumerate(zip(one.entries, other.entries, strict=False))
                if mine.epoch == theirs.epoch
            ]
            if common and one.entries[: common[-1] + 1] != other.entries[: common[-1] + 1]:
                return Violation("LogMatching", f"{tell(one.entries)} and {tell(other.entries)} differ")
    return None


# What is reported


def tell(entries: tuple[Entry, ...]) -> str:
    """Records in short."""
    return f"[{' '.join(map(str, entries))}]"


def _nodes(nodes: Any) -> str:
    return "{" + " ".join(f"n{int(node)}" for node in sorted(nodes)) + "}"


def tell_metadata(world: World) -> str:
    """Committed metadata of the partition and its brokers, in full."""
    one = world.metadata.partition
    leader = "none" if one.leader == NO_NODE else f"n{int(one.leader)}"
    more = [
        f", {name} {_nodes(nodes)}"
        for name, nodes in (("ELR", one.eligible_leader_replicas), ("in doubt", one.last_known_elr))
        if nodes
    ]
    fenced = [node for node, broker in world.metadata.brokers.items() if broker.fenced]
    more.append(f", fenced {_nodes(fenced)}" if fenced else "")
    more.append(", RECOVERING" if one.recovering else "")
    unproven = world.metadata.unproven
    more.append(f", unproven {_nodes(unproven)}" if unproven else "")
    for node, reported in world.metadata.reported.items():
        more.append(f", n{int(node)} says that it cannot serve" if reported.unserved else "")
        more.append(f", n{int(node)} says that its log ends at {reported.log_end}" if reported.log_end >= 0 else "")
    epochs = f"leader epoch {one.leader_epoch}, partition epoch {one.partition_epoch}"
    return f"leader {leader}, {epochs}, ISR {_nodes(one.isr)}{''.join(more)}"


def tell_broker(one: BrokerView) -> str:
    """A broker in full."""
    log = f"log {tell(one.entries)}, of which synced {tell(one.disk)}"
    if not one.up:
        ruined = ", and the disk was ruined" if one.ruined else ""
        intact = one.found is LogCondition.INTACT and not one.ruined
        found = "" if intact else f"; recovery will find it {one.found.name.lower()}{ruined}"
        return f"down; {log}{found}"
    slow = f"; slow: {' '.join(one.slow)}" if one.slow else ""
    if one.role is None:
        return f"life {one.life}, knows no metadata yet; {log}{slow}"
    what = f"{one.role.value} in epoch {one.knows[0]}"
    if one.leads >= 0:
        beyond = f", waits for {_nodes(one.maximal_isr)}" if one.maximal_isr != one.isr else ""
        proposes = ", has a change to propose" if one.proposes else ", has proposed a change" if one.asked else ""
        what += f", ISR {_nodes(one.isr)}{beyond}{proposes}"
    elif one.follows is not None:
        what += f" of n{int(one.follows)}{'' if one.connected else ', not connected'}"
    return f"life {one.life}, {what}; {log}; high watermark {one.high_watermark}{slow}"


def tell_message(message: Any) -> str:
    """A message that is held back."""
    if hasattr(message, "frame"):
        return f"a frame of n{int(message.follower)} (life {message.life}) to n{int(message.leader)}"
    isr = _nodes(member.node_id for member in message.item.new_isr)
    what = "the answer to" if message.answered else "" if message.heard else "another copy of"
    return f"{what} n{int(message.leader)}'s proposal of ISR {isr}".strip()


def tell_point(one: BrokerView) -> tuple[str, int, int, int, int, str]:
    """A broker in a row of a story."""
    last = one.entries[-1].epoch if one.entries else -1
    if not one.up or one.role is None:
        return "down" if not one.up else "idle", -1, -1, len(one.entries), last, ""
    return one.role.name.lower(), one.knows[0], one.high_watermark, len(one.entries), last, ""


def tell_committed(world: World) -> tuple[int, int, int, tuple[int, ...], tuple[int, ...], bool]:
    """The metadata in a row of a story."""
    one = world.metadata.partition
    isr, elr = tuple(map(int, one.isr)), tuple(map(int, one.eligible_leader_replicas))
    return int(one.leader), int(one.leader_epoch), int(one.partition_epoch), isr, elr, one.recovering
