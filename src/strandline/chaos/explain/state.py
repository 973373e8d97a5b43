"""All nodes of a simulated run at one instant: quorum, brokers, replicas, and the faults that are in effect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from strandline.chaos.explain.recorder import Committed, Recording, Replica
from strandline.chaos.sim.process import ProcessState
from strandline.chaos.sim.world import World


def snapshot(run: Any, recording: Recording) -> dict[str, Any]:
    """Plain data: what `strandline sim --until` shows."""
    world: World = run.world
    document: dict[str, Any] = {"at_ms": round(world.now_ms, 3), "faults": list(open_faults(world)), "nodes": {}}
    nodes = {name: machine for name, machine in world.machines.items() if name[:1] == "n" and name[1:].isdigit()}
    live = {} if not hasattr(run, "cluster") else {f"n{one.number}": one for one in run.cluster.nodes()}
    for name, machine in nodes.items():
        process = machine.process
        state = "down" if process is None or not process.alive else process.state.value
        document["nodes"][name] = {
            "state": state,
            "incarnation": machine.incarnations,
            "disk_bytes": machine.disk.used_bytes,
        }
        if name in live:
            document["nodes"][name]["ready"] = live[name].node.ready
    document["replicas"] = {
        subject: {
            "committed": _committed(recording.committed.get(subject)),
            "nodes": {name: _replica(points[-1]) for name, points in sorted(by_node.items())},
        }
        for subject, by_node in recording.replicas.items()
    }
    document["events"] = [list(event) for event in run.nemesis.events[-10:]]
    return document


def _committed(changes: list[Committed] | None) -> dict[str, Any] | None:
    return None if not changes else changes[-1]._asdict()


def _replica(point: Replica) -> dict[str, Any]:
    return {name: value for name, value in point._asdict().items() if name != "at_ms"}


def open_faults(world: World) -> Iterator[str]:
    """Lines on the faults in effect now, from the world itself."""
    for name, machine in world.machines.items():
        process = machine.process
        if not machine.powered:
            yield f"{name} has no power"
        elif process is None or not process.alive:
            yield f"{name} runs nothing"
        elif process.state is ProcessState.PAUSED:
            yield f"{name} is paused"
        disk = machine.disk
        if disk.config.slow_factor != 1.0:
            yield f"disk of {name} is {disk.config.slow_factor:.0f} times slower"
        if disk.free_bytes <= 0:
            yield f"disk of {name} is full"
        if disk.faults.syncs:
            yield f"the next {disk.faults.syncs} syncs of {name} fail"
    for (source, target), link in world.network.links.items():
        if link.blocked:
            yield f"{source} -> {target} is cut"
        if link.extra_latency_us:
            yield f"{source} -> {target} is delayed by {link.extra_latency_us} us"
        if link.loss_probability:
            yield f"{source} -> {target} loses {link.loss_probability:.0%}"


def render(document: Mapping[str, Any]) -> list[str]:
    """Lines of text of a document."""
    lines = [f"state at {document['at_ms']:,.0f} ms of virtual time", "", "nodes"]
    for name, node in document["nodes"].items():
        ready = "" if "ready" not in node else ", ready" if node["ready"] else ", not ready"
        lines.append(f"  {name}: {node['state']}, incarnation {node['incarnation']}{ready}")
    lines.append("faults in effect" if document["faults"] else "no fault is in effect")
    lines += [f"  {fault}" for fault in document["faults"]]
    for subject, state in document["replicas"].items():
        committed = state["committed"]
        lines += ["", subject]
        if committed is not None:
            leader = f"n{committed['leader']}" if committed["leader"] >= 0 else "none"
            isr = " ".join(f"n{node}" for node in committed["isr"])
            elr = " ".join(f"n{node}" for node in committed["elr"])
            epochs = f"leader epoch {committed['leader_epoch']}, partition epoch {committed['partition_epoch']}"
            lines.append(f"  committed: leader {leader}, {epochs}, ISR [{isr}], ELR [{elr}]")
        lines.append(f"  {'node':<6}{'role':<12}{'epoch':>6}{'HW':>8}{'log end':>9}  last epoch")
        for name, one in state["nodes"].items():
            numbers = f"{one['epoch']:>6}{one['high_watermark']:>8}{one['log_end']:>9}{one['log_end_epoch']:>12}"
            lines.append(f"  {name:<6}{one['role']:<12}{numbers}  {one['note']}".rstrip())
    if document["events"]:
        lines += ["", "what happened to it last"]
        lines += [f"  {at_ms:>8} ms  {what}" for at_ms, what in document["events"]]
    return lines
