"""Which replicas to move, and where: pure, and near linear in the number of partitions.

Every plan (rule B47)

- leaves each partition at least as many replicas as it has, unless fewer are asked for;
- assigns a partition to a broker once, and assigns nothing to a broker that is down or cordoned;
- keeps the replicas of a partition in as many racks as before, or more;
- moves nothing that is in place already.

Brokers are even when the numbers of their replicas differ by one at most, or their bytes by `TOLERANCE` of the mean, as
far as racks allow. Replicas move from a broker above the mean to a broker below it before any other move, so that no
replica is moved twice. Replicas of all topics count together; of a broker that has too many, replicas of the topic that
it has most of move first.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from strandline.proto.ids import TopicPartition
from strandline.tools.moves.draft import Draft
from strandline.tools.moves.layout import Cluster, DirectoryMove, Left, Partition, Plan

TOLERANCE = 0.1
"""Fraction of the mean by which brokers may differ in bytes or load: a smaller difference is not worth a move."""

_LEFT_SHOWN = 5

By = Literal["replicas", "bytes"]
Leaders = Literal["count", "load", "none"]


def move_to(cluster: Cluster, wanted: Mapping[TopicPartition, Sequence[int]]) -> Plan:
    """Plan to give each partition exactly the replicas in `wanted`; impossible ones are left, each with its reason."""
    draft = Draft(cluster)
    for index, partition in enumerate(cluster.partitions):
        nodes = wanted.get(partition.tp)
        if nodes is None:
            continue
        why = _refusal(draft, index, nodes)
        if why:
            draft.leave(index, why)
        else:
            draft.assign(index, nodes, f"asked for: {','.join(map(str, nodes))}")
    return draft.plan()


def _refusal(draft: Draft, index: int, nodes: Sequence[int]) -> str:
    """Reason the partition cannot have these replicas, or ""."""
    brokers, have = draft.cluster.brokers, draft.replicas[index]
    unknown = [node for node in nodes if node not in brokers]
    if not nodes or len(set(nodes)) < len(nodes):
        return "each broker once, and one at least"
    if unknown:
        return f"there is no broker {unknown[0]}"
    new = [brokers[node] for node in nodes if node not in have]
    barred = [one.why_not for one in new if not one.takes]
    if barred:
        return barred[0]
    full = [one.node_id for one in new if not draft.fits(index, one.node_id)]
    return f"broker {full[0]} has no room for it" if full else ""


def move_off(
    cluster: Cluster, off: Iterable[int], only: Callable[[TopicPartition], bool] = lambda _: True, by: By = "replicas"
) -> Plan:
    """Plan to empty brokers: each replica moves to a broker of the same rack, or of a rack without a replica."""
    draft = Draft(cluster, off, by)
    _leave_the_dead_of_moves(draft)
    for node in sorted(draft.off):
        # The largest first: room for them is the hardest to find.
        for index in sorted(draft.on.get(node, ()), key=lambda one: -cluster.partitions[one].size):
            if only(cluster.partitions[index].tp):
                _replace(draft, index, node, f"off broker {node}")
    _even_leaders_of(draft)
    return draft.plan()


def why_not_empty(cluster: Cluster, nodes: Sequence[int], left: Sequence[Left]) -> str:
    """Sentence that says why these brokers cannot be emptied, with figures. Too few remaining brokers for a
    replication factor are named first.

    Args:
        left: the partitions that `move_off` could not move.
    """
    who = f"broker{'s' if len(nodes) > 1 else ''} {','.join(map(str, nodes))}"
    theirs = [one for one in cluster.partitions if not {*nodes}.isdisjoint(one.target)]
    of_them = sum(len({*nodes}.intersection(one.target)) for one in theirs)
    stay = [node for node, one in sorted(cluster.brokers.items()) if one.takes and node not in nodes]
    most = max(theirs, key=lambda one: len(one.target))
    few = ""
    if len(stay) < len(most.target):
        those = f" ({','.join(map(str, stay))})" if stay else ""
        few = f"{most.tp} has {len(most.target)} copies, and brokers that would be left for them: {len(stay)}{those}. "
    shown = "; ".join(f"{one.tp}: {one.why}" for one in left[:_LEFT_SHOWN])
    more = f"; and {len(left) - _LEFT_SHOWN:,} more" if len(left) > _LEFT_SHOWN else ""
    return (
        f"{who} cannot be emptied: {len(left):,} of {'their' if len(nodes) > 1 else 'its'} {of_them:,} replicas have "
        f"nowhere to go. {few}{shown}{more}"
    )


def leaders_off(cluster: Cluster, off: Iterable[int]) -> Plan:
    """Plan to move leadership away from brokers that are to be emptied; no data is copied. New leaders are replicas in
    sync, on the brokers that lead least."""
    draft = Draft(cluster, off)
    may = _leading(draft)
    leads = Counter(replicas[0] for replicas in draft.replicas)
    for index, partition in enumerate(cluster.partitions):
        first = draft.replicas[index][0]
        if not {first, partition.leader} & draft.off or partition.moves:
            continue
        others = [node for node in draft.replicas[index] if node in partition.isr and node in may]
        if others:
            best = min(others, key=lambda node: (leads[node], node))
            leads.subtract([first])
            leads.update([best])
            draft.lead(index, best, f"broker {first} is to lead nothing")
    return draft.plan()


def _replace(draft: Draft, index: int, old: int, why: str) -> bool:
    new = draft.best(index, without=old)
    if new is None:
        draft.leave(index, _nowhere(draft, index, old))
        return False
    draft.swap(index, old, new, why)
    return True


def _nowhere(draft: Draft, index: int, old: int) -> str:
    """Sentence that says why no broker can take the replica of broker `old`, with figures."""
    replicas = draft.replicas[index]
    takers = draft.takers
    barred = [
        one.why_not
        for node, one in sorted(draft.cluster.brokers.items())
        if not one.takes and node not in replicas and node != old
    ]
    free = [one.node_id for one in takers if one.node_id not in replicas]
    full = [node for node in free if not draft.fits(index, node)]
    reason = "; ".join(barred + [f"broker {node} has no room" for node in full])
    return (
        f"{len(replicas)} copies, and {len(takers)} brokers that may have them"
        f"{f' ({reason})' if reason else ''}: without broker {old} there is a copy too few"
    )


def _leave_the_dead_of_moves(draft: Draft) -> None:
    """Redirect moves under way to a broker that is down to another broker, or cancel them."""
    for index, partition in enumerate(draft.cluster.partitions):
        for node in partition.adding:
            broker = draft.cluster.brokers.get(node)
            if (broker is None or not broker.alive) and node in draft.replicas[index]:
                why = f"broker {node}, to which it moves, is down"
                new = draft.best(index, without=node)
                if new is None:
                    draft.cancel.append(Left(partition.tp, why))  # rule B48/a-move-to-a-dead-broker-waits
                else:
                    draft.swap(index, node, new, why)


def change_factor(cluster: Cluster, factor: int, only: Callable[[TopicPartition], bool]) -> Plan:
    """Plan to give partitions `factor` replicas. New ones go to racks without a replica first; replicas in sync are
    removed last."""
    draft = Draft(cluster)
    for index, partition in enumerate(cluster.partitions):
        if not only(partition.tp):
            continue
        replicas = draft.replicas[index]
        while len(replicas) > max(factor, 1):
            draft.drop(index, _least_needed(draft, index), f"{factor} copies are asked for")
        while len(replicas) < factor:
            new = draft.best(index)
            if new is None:
                draft.leave(index, f"{factor} copies: {_too_few(draft)}")
                draft.assign(index, partition.target, "")  # rule B47/half-a-factor-is-kept
                break
            draft.add(index, new, f"{factor} copies are asked for")
    _even_leaders_of(draft)
    return draft.plan()


def _too_few(draft: Draft) -> str:
    barred = [one.why_not for _, one in sorted(draft.cluster.brokers.items()) if not one.takes]
    return f"{len(draft.takers)} brokers may have one{f' ({chr(59).join(barred)})' if barred else ''}, with room for it"


def _least_needed(draft: Draft, index: int) -> int:
    """Node id of the replica to remove: one out of sync first, then one on a broker that gets no replicas, then a
    second one of a rack, then one on the fullest broker; the leader last."""
    partition, replicas = draft.cluster.partitions[index], draft.replicas[index]
    zones = Counter(draft.zone(node) for node in replicas)
    takers = {one.node_id for one in draft.takers}

    def rank(node: int) -> tuple[object, ...]:
        # rule B47/the-copy-in-sync-is-given-up
        return (
            node in partition.isr,
            node == partition.leader,
            node in takers,
            zones[draft.zone(node)] < 2,
            *(-each for each in draft.burden(node)),
            -replicas.index(node),
        )

    return min(replicas, key=rank)


def rebalance(
    cluster: Cluster,
    *,
    by: By = "replicas",
    leaders: Leaders = "count",
    directories: bool = False,
    replicas: bool = True,
) -> Plan:
    """Plan to spread replicas over racks and to even out brokers: replicas or bytes, leaders or their load, and the log
    directories within each broker. New brokers get their share; cordoned brokers keep what they have.

    Args:
        replicas: whether replicas move; False evens out leaders alone.
    """
    draft = Draft(cluster, by=by)
    if replicas:
        _leave_the_dead_of_moves(draft)
        _spread_over_racks(draft)
        _even_brokers(draft)
    if leaders == "load" and any(partition.load for partition in cluster.partitions):
        _even_leaders_by_load(draft)
    elif leaders != "none":
        _even_leaders(draft, range(len(cluster.partitions)))
    plan = draft.plan()
    return replace(plan, directories=_even_directories(cluster)) if directories else plan


def _spread_over_racks(draft: Draft) -> None:
    """Separate two replicas of one rack where a broker of another rack can take one of them."""
    racks = {one.zone for one in draft.takers}
    for index, replicas in enumerate(draft.replicas):
        while True:
            zones = Counter(draft.zone(node) for node in replicas)
            twice = [node for node in reversed(replicas) if zones[draft.zone(node)] > 1]
            if not twice or not racks - zones.keys():
                break
            new = draft.best(index, without=twice[0])
            if new is None or draft.zone(new) in zones:
                break
            draft.swap(index, twice[0], new, "two copies in one rack")


@dataclass(frozen=True, slots=True)
class _Evening:
    """Which shifts between two brokers help.

    Attributes:
        low, high: the mean, rounded down and up.
        least: brokers that differ by less are alike.
        strict: 2: what one has too much and the other lacks; 1: one of the two; 0: whatever brings them closer.
    """

    low: int
    high: int
    least: float
    strict: int

    def helps(self, above: int, below: int, weight: int) -> bool:
        met = (above - weight >= self.high) + (below + weight <= self.low)
        return met >= self.strict and 2 * weight <= above - below


def _even_brokers(draft: Draft) -> None:
    """Even out the brokers that may get replicas."""
    nodes = [one.node_id for one in draft.takers]
    if len(nodes) < 2:
        return
    mean = sum(draft.burden(node)[0] for node in nodes) / len(nodes)
    least = 2.0 if draft.by == "replicas" else max(2.0, TOLERANCE * mean)
    for strict in (2, 1, 0):
        evening = _Evening(math.floor(mean), math.ceil(mean), least, strict)
        while _round(draft, nodes, evening):
            pass


def _round(draft: Draft, nodes: list[int], evening: _Evening) -> bool:
    """Move replicas from each broker, the fullest first, to each other one, the emptiest first. True if any moved."""
    moved = False
    for high in sorted(nodes, key=lambda node: (*(-each for each in draft.burden(node)), node)):
        ordered: list[int] | None = None
        for low in sorted(nodes, key=lambda node: (*draft.burden(node), node)):
            if draft.burden(high)[0] - draft.burden(low)[0] < evening.least:
                break
            if ordered is None:
                ordered = _candidates(draft, high)
            moved |= _shift(draft, (high, low), ordered, evening)
    return moved


def _candidates(draft: Draft, high: int) -> list[int]:
    """Indices of a broker's partitions in the order in which they are moved away. By bytes, the largest first, so that
    few are moved; by number, the smallest of each topic, then the next of each topic."""
    partitions = draft.cluster.partitions
    if draft.by == "bytes":
        return sorted(draft.on[high], key=lambda index: (-partitions[index].size, index))
    seen: Counter[str] = Counter()
    ranked: list[tuple[int, int, int]] = []
    for index in sorted(draft.on[high], key=lambda index: (partitions[index].size, index)):
        ranked.append((seen[partitions[index].tp.topic], len(ranked), index))
        seen[partitions[index].tp.topic] += 1
    return [index for _, _, index in sorted(ranked)]


def _shift(draft: Draft, pair: tuple[int, int], ordered: list[int], evening: _Evening) -> bool:
    """Move replicas from the first broker to the second while that evens them out; topics that the first has more of
    come first. True if any moved."""
    high, low = pair
    partitions = draft.cluster.partitions
    topics = Counter(partitions[index].tp.topic for index in draft.on[high])
    topics.subtract(partitions[index].tp.topic for index in draft.on[low])
    moved = False
    for spread in (True, False):
        for index in ordered:
            topic = partitions[index].tp.topic
            weight = partitions[index].size if draft.by == "bytes" else 1
            above, below = draft.burden(high)[0], draft.burden(low)[0]
            helps = evening.helps(above, below, weight)
            if above - below < evening.least or (draft.by == "replicas" and not helps):
                return moved
            if not helps or not weight or (spread and topics[topic] < 2) or index not in draft.on[high]:
                continue
            if draft.may_move(index, high, low):
                draft.swap(index, high, low, f"broker {high} has more than broker {low}")
                topics[topic] -= 2
                moved = True
    return moved


def _leading(draft: Draft) -> set[int]:
    """Brokers that may become leaders of more partitions."""
    return {node for node, one in draft.cluster.brokers.items() if one.alive and node not in draft.off}


def _even_leaders_of(draft: Draft) -> None:
    """Even out leaders over the partitions that the plan changes, and no others."""
    changed = [index for index, one in enumerate(draft.cluster.partitions) if list(one.target) != draft.replicas[index]]
    _even_leaders(draft, changed)


def _even_leaders(draft: Draft, indices: Iterable[int]) -> None:
    """Even out the number of partitions whose preferred leader each broker is, to a difference of one, as far as
    replicas allow. Each step is a path: a broker hands a partition to a second one, which hands another one on, and so
    forth, to a broker that leads two fewer than the first."""
    may = _leading(draft)
    leads = Counter(dict.fromkeys(may, 0))
    leads.update(replicas[0] for replicas in draft.replicas)
    hands: dict[int, dict[int, dict[int, None]]] = {node: {} for node in draft.on}
    for index in indices:
        _offer(draft, hands, index, may)
    while path := next(filter(None, (_path(hands, leads, node) for node in _by_leaders(leads, hands))), None):
        for giver, taker in path:
            index = next(iter(hands[giver][taker]))
            _withdraw(draft, hands, index, may)
            draft.lead(index, taker, "leaders are evened")
            _offer(draft, hands, index, may)
            leads[giver] -= 1
            leads[taker] += 1


def _by_leaders(leads: Counter[int], hands: Mapping[int, object]) -> list[int]:
    return sorted((node for node in leads if node in hands), key=lambda node: (-leads[node], node))


def _offer(draft: Draft, hands: dict[int, dict[int, dict[int, None]]], index: int, may: set[int]) -> None:
    leader, *others = draft.replicas[index]
    for node in others:
        if node in may:
            hands[leader].setdefault(node, {})[index] = None


def _withdraw(draft: Draft, hands: dict[int, dict[int, dict[int, None]]], index: int, may: set[int]) -> None:
    leader, *others = draft.replicas[index]
    for node in others:
        if node in may:
            del hands[leader][node][index]


def _path(
    hands: Mapping[int, Mapping[int, Mapping[int, None]]], leads: Counter[int], most: int
) -> list[tuple[int, int]]:
    """Steps (from, to) from broker `most` to one that leads two partitions fewer; empty if there are none."""
    came: dict[int, int] = {}
    queue = deque([most])
    while queue:
        node = queue.popleft()
        for other, offered in sorted(hands[node].items()):
            if not offered or other in came or other == most:
                continue
            came[other] = node
            if leads[other] <= leads[most] - 2:
                path = [(node, other)]
                while path[0][0] != most:
                    path.insert(0, (came[path[0][0]], path[0][0]))
                return path
            queue.append(other)
    return []


def _even_leaders_by_load(draft: Draft) -> None:
    """Choose preferred leaders so that the load of what each broker leads is even."""
    may = sorted(_leading(draft))
    partitions = draft.cluster.partitions
    weighs = Counter(dict.fromkeys(may, 0))
    led: dict[int, dict[int, None]] = {node: {} for node in draft.on}
    for index, nodes in enumerate(draft.replicas):
        weighs[nodes[0]] += partitions[index].load
        led[nodes[0]][index] = None
    least = TOLERANCE * sum(weighs.values()) / max(1, len(may))
    helped = True
    while helped:
        helped = False
        for high in sorted(may, key=lambda node: (-weighs[node], node)):
            for index in sorted(led[high], key=lambda one: (-partitions[one].load, one)):
                load = partitions[index].load
                others = [node for node in draft.replicas[index][1:] if node in may]
                low = min(others, key=lambda node: (weighs[node], node), default=high)
                gap = weighs[high] - weighs[low]
                if not load or gap < least or 2 * load > gap:
                    continue
                draft.lead(index, low, "the load of leaders is evened")
                del led[high][index]
                led[low][index] = None
                weighs[high] -= load
                weighs[low] += load
                helped = True


def _even_directories(cluster: Cluster) -> tuple[DirectoryMove, ...]:
    """Moves between the log directories of each broker, by bytes."""
    found: list[DirectoryMove] = []
    for node, broker in sorted(cluster.brokers.items()):
        paths = [one.path for one in broker.directories]
        if len(paths) < 2 or not broker.alive:
            continue
        inside: dict[str, list[Partition]] = {path: [] for path in paths}
        for partition in cluster.partitions:
            home = partition.homes.get(node)
            if home in inside and node in partition.target:
                inside[home].append(partition)
        found += _within(node, inside, {one.path: one.usable_bytes for one in broker.directories})
    return tuple(sorted(found, key=lambda move: (move.bytes, move.tp, move.broker)))


def _within(
    node: int, inside: Mapping[str, Sequence[Partition]], room: Mapping[str, int | None]
) -> list[DirectoryMove]:
    """Moves within one broker, from the fullest log directory to the emptiest, while that evens them out."""
    used = {path: sum(one.size for one in partitions) for path, partitions in inside.items()}
    least = TOLERANCE * sum(used.values()) / len(used)
    moves = []
    for source in sorted(used, key=lambda path: (-used[path], path)):
        for partition in sorted(inside[source], key=lambda one: (-one.size, one.tp)):
            target = min(used, key=lambda path: (used[path], path))
            gap = used[source] - used[target]
            free = room[target]
            if gap < least or not partition.size or 2 * partition.size > gap:
                continue
            if free is not None and partition.size > free - (used[target] - sum(one.size for one in inside[target])):
                continue
            used[source] -= partition.size
            used[target] += partition.size
            moves.append(DirectoryMove(partition.tp, node, source, target, partition.size))
    return moves
