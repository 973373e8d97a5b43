"""Faults of disks: slow, full, failing syncs, writes and reads, rotten bits, and a disk that is replaced.

Who operates such a machine acts as its messages say: over a failed sync it is rebooted, over a failed write the node is
restarted, a damaged partition's directory is moved away, and a new disk is formatted under a directory id of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from strandline.chaos.nemesis.nemesis import Nemesis

_ROTS_AT_THE_END = 0.5
_END_BYTES = 300
"""A batch or two: what recovery cuts like a torn tail."""


def slow(nemesis: Nemesis) -> None:
    """Many times slower."""
    name = nemesis.pick()
    config = nemesis.disk(name).config
    config.slow_factor = nemesis.rng.choice((5.0, 30.0, 100.0))

    def undo() -> None:
        config.slow_factor = 1.0

    nemesis.note(f"disk of {name} {config.slow_factor:.0f} times slower for {nemesis.later(undo)} ms")


def full(nemesis: Nemesis) -> None:
    """Space for a little more, then none, until somebody makes room."""
    name = nemesis.pick()
    disk = nemesis.disk(name)
    before = disk.config.capacity_bytes
    left = nemesis.rng.choice((0, 10_000, 200_000))
    disk.config.capacity_bytes = disk.used_bytes + left

    def undo() -> None:
        disk.config.capacity_bytes = max(before, disk.config.capacity_bytes)

    nemesis.note(f"disk of {name} has {left} bytes left for {nemesis.later(undo)} ms")


def fail_sync(nemesis: Nemesis) -> None:
    """One sync fails. Nothing on that machine can be trusted until it reboots (D-32)."""
    name = nemesis.pick()
    if nemesis.world.process(name) is None or name in nemesis.damaged:
        return
    nemesis.disk(name).faults.syncs = 1
    nemesis.damaged[name] = None
    nemesis.excuse(name)

    def reboot() -> None:
        nemesis.disk(name).faults.syncs = 0
        del nemesis.damaged[name]
        nemesis.blame(name)
        nemesis.note(f"reboot {name}")
        nemesis.world.power_cut(name)
        nemesis.restart(name)

    nemesis.note(f"the next sync of {name} fails; reboot it {nemesis.later(reboot)} ms later")


def fail_write(nemesis: Nemesis) -> None:
    """A write fails with EIO, a part of it may be done; the node is restarted once the disk is well."""
    name = nemesis.pick()
    faults = nemesis.disk(name).faults
    faults.writes, faults.where = 1, nemesis.rng.choice(("", "", ".log", "__cluster_metadata"))
    nemesis.excuse(name)

    def undo() -> None:
        faults.writes, faults.where = 0, ""
        nemesis.blame(name)
        nemesis.note(f"the disk of {name} writes again, and its node is restarted")
        nemesis.world.kill(name)
        nemesis.restart(name)

    nemesis.note(f"a write of {name} ({faults.where or 'any file'}) fails; mend it {nemesis.later(undo)} ms later")


def fail_read(nemesis: Nemesis) -> None:
    """Some reads fail with EIO. It passes, and nobody need restart a node that bore it."""
    name = nemesis.pick()
    faults = nemesis.disk(name).faults
    faults.reads = nemesis.rng.choice((1, 1, 5))
    nemesis.excuse(name)

    def undo() -> None:
        faults.reads = 0
        nemesis.blame(name)
        nemesis.restart(name)

    nemesis.note(f"reads of {name} fail {faults.reads} times, within {nemesis.later(undo)} ms")


def bit_rot(nemesis: Nemesis) -> None:
    """A bit of a partition's log turns over, on the one machine of the run to which such things happen: anywhere, or in
    what was written last. Whoever watches the disk moves the directory away and restarts the node: it is fetched again
    from the leader."""
    name = nemesis.victim
    disk = nemesis.disk(name)
    logs = [path for path, content in disk.files().items() if path.endswith(".log") and any(content)]
    logs = [path for path in logs if "__cluster_metadata" not in path]
    if not logs:
        return
    path = nemesis.rng.choice(logs)
    written = disk.files()[path].rstrip(b"\0")
    position, bit = nemesis.rng.randrange(len(written)), nemesis.rng.randrange(8)
    if nemesis.rng.random() < _ROTS_AT_THE_END:
        position = max(0, len(written) - 1 - position % _END_BYTES)
    directory = path.rpartition("/")[0]
    first = directory not in disk.rotten
    disk.rot(path, position, bit)

    def undo() -> None:
        nemesis.blame(name)
        if directory in disk.rotten:  # else the machine has a new disk since, and nothing rotten on it
            nemesis.note(f"the rotten {directory} of {name} is moved away, its node is restarted")
            nemesis.world.kill(name)
            disk.remove_directory(directory)
        nemesis.restart(name)

    nemesis.note(f"bit {bit} of byte {position} of {path} on {name} turns over")
    if first:
        nemesis.excuse(name)
        nemesis.note(f"somebody will see it {nemesis.later(undo)} ms later")


def lose_directory(nemesis: Nemesis) -> None:
    """The process dies, and a partition's directory is gone when the next one starts, on the one machine of the run to
    which such things happen."""
    name = nemesis.victim
    disk = nemesis.disk(name)
    logs = [path for path in disk.files() if path.endswith(".log") and "__cluster_metadata" not in path]
    directories = sorted({path.rpartition("/")[0] for path in logs})
    if not directories:
        return
    path = nemesis.rng.choice(directories)
    nemesis.world.kill(name)
    disk.remove_directory(path)
    nemesis.note(f"{path} of {name} is lost; it starts {nemesis.later(lambda: nemesis.restart(name))} ms later")


def wipe(nemesis: Nemesis) -> None:
    """A machine comes back with a new disk, on the one machine of the run to which such things happen."""
    name = nemesis.victim
    nemesis.world.power_cut(name)
    nemesis.disk(name).wipe()
    nemesis.note(f"{name} gets a new, empty disk, and starts {nemesis.later(lambda: nemesis.restart(name))} ms later")
