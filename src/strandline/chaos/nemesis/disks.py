"""Faults of disks: slow, full, syncs that fail or hang, failing writes and reads, rotten bits, and a disk that is
replaced.

Over a failed sync or write the node is restarted, by a supervisor that knows nothing of it, or the machine rebooted. A
damaged partition's directory is moved away, and a new disk is formatted under a directory id of its own, by the
operator, as the node's messages say.
"""

from __future__ import annotations

import errno
import random
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from strandline.chaos.checkers.batches import NotABatch
from strandline.chaos.checkers.stored import stored_headers
from strandline.chaos.nemesis.options import SUPERVISOR_MS
from strandline.chaos.nemesis.processes import DAYS_MS
from strandline.controller.quorum.recovery_point import FILE_NAME as RECOVERY_POINT
from strandline.controller.quorum.state_file import STATE
from strandline.log.checkpoints import copy_of
from strandline.log.incarnations import INCARNATIONS
from strandline.replica.disk_health import NOTICE_MS

if TYPE_CHECKING:
    from strandline.chaos.nemesis.nemesis import Nemesis
    from strandline.chaos.sim.disk import DiskFaults, SimDisk

_ROTS_AT_THE_END = 0.5
_PARTITION = re.compile(r"-\d+/[^/]*$")
"""A file in the directory of a partition."""
_APART_MS = 100
"""Milliseconds between the starts of nodes that were killed together, at most: what rule B30 (an unproven end waits
for reports) waits for is longer."""
_CALM_MS = 6_000
"""Milliseconds after which the replicas are in sync again."""
_BATCHES_LOST_MAX = 8
_BESIDE_LOGS = re.compile(
    r"/([a-z-]+-offset-checkpoint|offset-checkpoints-copy|\.boot-id|\.retention-clock|\.kafka_cleanshutdown"
    r"|incarnations(-copy)?|replica-directories|recovery-findings|recovery-point\.properties|quorum-state|leader-epoch-checkpoint|\d{20}\.(index|timeindex|snapshot))$"
)
"""Files that a start builds anew where they are damaged, or goes on without (docs/storage.md)."""
_END_BYTES = 300
"""A batch or two: what recovery cuts like a torn tail."""


def slow(nemesis: Nemesis) -> None:
    """Many times slower. A node whose syncs take longer than it bears stops itself, even after the fault is undone: a
    sync that began in it takes its time."""
    name = nemesis.pick()
    config = nemesis.any_disk(name).config
    factor = config.slow_factor = nemesis.rng.choice((5.0, 30.0, 100.0))
    nemesis.excuse(name)

    def undo() -> None:
        config.slow_factor = 1.0
        nemesis.blame_after_slow_syncs(name, factor)

    nemesis.note(f"disk of {name} {factor:.0f} times slower for {nemesis.later(undo)} ms")


def full(nemesis: Nemesis) -> None:
    """Let a disk run full soon, until space is freed by the fault's end."""
    name = nemesis.pick()
    disk = nemesis.any_disk(name)
    before = disk.config.capacity_bytes
    left = nemesis.rng.choice((0, 10_000, 200_000))
    disk.config.capacity_bytes = disk.used_bytes + left

    def undo() -> None:
        disk.config.capacity_bytes = max(before, disk.config.capacity_bytes)

    nemesis.note(f"disk of {name} has {left} bytes left for {nemesis.later(undo)} ms")


def fail_sync(nemesis: Nemesis) -> None:
    """A sync fails, of files or of names. What the kernel then shows of that disk is not what is on it
    (schedule 32)."""
    name = nemesis.pick()
    if nemesis.world.process(name) is None or name in nemesis.damaged:
        return
    what = nemesis.rng.choice(("syncs", "syncs", "dir_syncs"))
    faults = nemesis.any_disk(name).faults
    faults.error = nemesis.rng.choice((errno.EIO, errno.ENOSPC))
    if nemesis.rng.random() < 0.5:
        _fail_and_reboot(nemesis, name, what, faults)
    else:
        _fail_and_restart(nemesis, name, what, faults)


def _fail_and_reboot(nemesis: Nemesis, name: str, what: str, faults: DiskFaults) -> None:
    """The operator knows the rule: nothing starts there before the machine has lost its memory."""
    setattr(faults, what, 1)
    nemesis.damaged[name] = None
    nemesis.excuse(name)

    def reboot() -> None:
        setattr(faults, what, 0)
        faults.error = errno.EIO
        del nemesis.damaged[name]
        nemesis.blame(name)
        nemesis.note(f"reboot {name}")
        nemesis.world.power_cut(name)
        nemesis.restart(name)

    nemesis.note(f"the next of {what} of {name} fails; reboot it {nemesis.later(reboot)} ms later")


def _fail_and_restart(nemesis: Nemesis, name: str, what: str, faults: DiskFaults) -> None:
    """A supervisor knows nothing of it: a node that stops is started again at once, in the same boot (schedule 47)."""
    setattr(faults, what, nemesis.rng.choice((1, 1, 3)))
    nemesis.excuse(name)
    ended: list[bool] = []

    def supervise() -> None:
        if not ended:
            nemesis.restart(name)
            nemesis.call_after(SUPERVISOR_MS, supervise)

    def undo() -> None:
        ended.append(True)
        setattr(faults, what, 0)
        faults.error = errno.EIO
        nemesis.blame(name)
        nemesis.note(f"{name} is restarted without a reboot")
        nemesis.world.kill(name)
        nemesis.restart(name)

    duration_ms = nemesis.later(undo)
    nemesis.call_after(SUPERVISOR_MS, supervise)
    nemesis.note(f"{what} of {name} fail {getattr(faults, what)} times, and it is restarted, within {duration_ms} ms")


def hang_sync(nemesis: Nemesis) -> None:
    """Let no sync of one machine end for a while. Its node may crash, stay blocked, or continue."""
    name = nemesis.pick()
    if nemesis.world.process(name) is None:
        return
    disk = nemesis.any_disk(name)
    disk.hang()
    nemesis.excuse(name)

    def undo() -> None:
        disk.let_go()
        nemesis.blame_after(name, 2 * NOTICE_MS)  # a node that has told that it ends over this, ends
        process = nemesis.world.process(name)
        if process is not None and process.blocked:
            nemesis.world.kill(name)
        nemesis.note(f"syncs of {name} end again")
        nemesis.restart(name)

    nemesis.note(f"no sync of {name} ends for {nemesis.later(undo)} ms")


def fail_write(nemesis: Nemesis) -> None:
    """A write fails with EIO, a part of it may be done; the node is restarted once the disk is well."""
    name = nemesis.pick()
    faults = nemesis.any_disk(name).faults
    faults.writes, faults.where = 1, nemesis.rng.choice(("", "", ".log", "__cluster_metadata"))
    nemesis.excuse(name)

    def undo() -> None:
        faults.writes, faults.where = 0, ""
        nemesis.blame(name)
        nemesis.note(f"the disk of {name} writes again, and its node is restarted")
        nemesis.world.kill(name)
        nemesis.restart(name)

    nemesis.note(f"a write of {name} ({faults.where or 'any file'}) fails; mend it {nemesis.later(undo)} ms later")


def fail_name(nemesis: Nemesis) -> None:
    """Files cannot be opened, directories not be listed or synced, names not be added, changed or removed: EIO, no
    descriptor left, or no room for a name. The node is restarted once that has passed."""
    name = nemesis.pick()
    faults = nemesis.any_disk(name).faults
    faults.names, faults.where = nemesis.rng.choice((1, 1, 5)), nemesis.rng.choice(("", ".log", "__cluster_metadata"))
    faults.error = nemesis.rng.choice((errno.EIO, errno.EMFILE, errno.ENOSPC))
    nemesis.excuse(name)

    def undo() -> None:
        faults.names, faults.where, faults.error = 0, "", errno.EIO
        nemesis.blame(name)
        nemesis.note(f"the names of {name} are well again, and its node is restarted")
        nemesis.world.kill(name)
        nemesis.restart(name)

    how = errno.errorcode[faults.error]
    what = f"{faults.names} calls of {name} that open or name files ({faults.where or 'any'}) fail with {how}"
    nemesis.note(f"{what}; mend it {nemesis.later(undo)} ms later")


def fail_read(nemesis: Nemesis) -> None:
    """Make some reads fail with EIO for a while; a node that bore it need not be restarted."""
    name = nemesis.pick()
    faults = nemesis.any_disk(name).faults
    faults.reads = nemesis.rng.choice((1, 1, 5))
    nemesis.excuse(name)

    def undo() -> None:
        faults.reads = 0
        nemesis.blame(name)
        nemesis.restart(name)

    nemesis.note(f"reads of {name} fail {faults.reads} times, within {nemesis.later(undo)} ms")


def bit_rot(nemesis: Nemesis) -> None:
    """A bit of a partition's log turns over, on the one machine of the run to which such things happen: anywhere, or in
    what was written last. Where the replica has not healed itself by then, the operator moves the directory away and
    restarts the node: it is fetched again from the leader."""
    _rot(nemesis, lambda path: path.endswith(".log"))


def rot_beside_log(nemesis: Nemesis) -> None:
    """As `bit_rot`, in one of the small files of a partition's directory: an index, the producers' snapshot, the leader
    epochs, the topic id."""
    _rot(nemesis, lambda path: not path.endswith(".log"))


def _rot(nemesis: Nemesis, may: Callable[[str], bool]) -> None:
    name = nemesis.victim
    disk = nemesis.any_disk(name)
    files = {path: content for path, content in disk.files().items() if any(content) and may(path)}
    paths = [path for path in files if _PARTITION.search(path) and "__cluster_metadata" not in path]
    if not paths:
        return
    path = nemesis.rng.choice(paths)
    written = files[path].rstrip(b"\0")
    position, bit = nemesis.rng.randrange(len(written)), nemesis.rng.randrange(8)
    if nemesis.rng.random() < _ROTS_AT_THE_END:
        position = max(0, len(written) - 1 - position % _END_BYTES)
    directory = path.rpartition("/")[0]
    first = directory not in disk.rotten
    disk.rot(path, position, bit)

    def undo() -> None:
        nemesis.blame(name)
        if directory in disk.rotten and not disk.look_for_rot(directory):
            nemesis.note(f"{directory} of {name} has no rot any more")
        if directory in disk.rotten:  # else the machine has a new disk since, and nothing rotten on it
            nemesis.note(f"the rotten {directory} of {name} is moved away, its node is restarted")
            nemesis.world.kill(name)
            disk.remove_directory(directory)
        nemesis.restart(name)

    nemesis.note(f"bit {bit} of byte {position} of {path} on {name} turns over")
    if first:
        nemesis.excuse(name)
        nemesis.note(f"somebody will see it {nemesis.later(undo)} ms later")


def zeroed_tail(nemesis: Nemesis) -> None:
    """kill -9 of all nodes; then the disk of the one machine of the run to which such things happen does not give back
    what it had synced last, in some logs of it: zeros, or files that end where a batch did (schedules 96, 97).

    All start within moments, that machine first, and nothing else happens for a while: an honest copy that comes later
    than is waited for may be cut. So nothing is done while another fault is in effect.
    """
    name = nemesis.victim
    disk = nemesis.any_disk(name)
    if not nemesis.is_calm or disk.rotten or any(nemesis.world.process(one) is None for one in nemesis.names):
        return
    newest: dict[str, str] = {}
    for path in sorted(disk.files()):
        if path.endswith(".log"):
            newest[path.rpartition("/")[0]] = path
    nemesis.look()
    if not nemesis.may_destroy():
        return
    for one in nemesis.names:
        nemesis.world.kill(one)
    nemesis.calm_until_ms = nemesis.world.now_ms + _CALM_MS
    for directory, path in newest.items():
        if nemesis.rng.random() < 0.5:
            _lose_tail(nemesis, disk, directory, path)
    order = [name, *nemesis.rng.sample([one for one in nemesis.names if one != name], len(nemesis.names) - 1)]
    for number, one in enumerate(order):
        delay_ms = 1 + (nemesis.rng.randint(0, _APART_MS) if number else 0)
        nemesis.call_after(delay_ms, lambda one=one: nemesis.restart(one))  # type: ignore[misc]
    nemesis.note(f"kill of all; {name} is back first")


def _lose_tail(nemesis: Nemesis, disk: SimDisk, directory: str, path: str) -> None:
    """Lose the last batches of a log's newest segment. Of the metadata log only what nothing vouches for: a
    controller that finds less than it noted as durable ends with advice to its operator (rule E5)."""
    noted = disk.files().get(f"{directory}/{RECOVERY_POINT}", b"")
    vouched = re.search(rb"^recovery\.point=(\d+)$", noted, re.MULTILINE)
    base = max(int(path[-24:-4]), int(vouched[1]) if vouched else 0)
    try:
        places = [place for batch, place in stored_headers(disk, directory) if batch.base_offset >= base]
    except NotABatch:
        return
    if places:
        lost = nemesis.rng.randint(1, min(len(places), _BATCHES_LOST_MAX))
        cut = nemesis.rng.random() < 0.3
        disk.lose_tail(path, places[-lost].position, cut=cut)
        how = "the file ends before" if cut else "zeros for"
        nemesis.note(f"{path} of {nemesis.victim}: {how} the newest {lost} batches")


def damage_files(nemesis: Nemesis) -> None:
    """A node stops, or is killed; when it starts again its disk gives back some files beside its logs as they are not:
    with a flipped bit, as zeros, cut, or as they were a while ago. Any machine, and several in one run: no record is
    among them (rule B31). Those that only an operator can put right are struck by `rot_beside_log` and `rot_metadata`;
    on one machine alone the copy of the lives of a directory, for with both files of them gone nothing in it counts as
    proven, and the state of the quorum, an older copy of which costs the vote (rule A14): a wipe of another machine
    leaves no majority then."""
    name, rng = nemesis.pick(), nemesis.rng
    if nemesis.world.process(name) is None or name in nemesis.damaged:
        return
    before, nemesis.older = (
        nemesis.older,
        {
            (machine, path): content
            for machine in nemesis.names
            for disk in nemesis.world.machines[machine].disks
            for path, content in disk.files().items()
            if _is_beside_logs(path)
        },
    )
    polite = nemesis.stop is not None and rng.random() < 0.5
    if nemesis.stop is not None and polite:
        nemesis.stop(name)
    else:
        nemesis.world.kill(name)

    def strike() -> None:
        nemesis.world.kill(name)
        disk = nemesis.world.machines[name].disks[0]
        files = {path: content for path, content in disk.files().items() if content and _is_beside_logs(path)}
        paths = [path for path in files if name == nemesis.victim or not path.endswith((copy_of(INCARNATIONS), STATE))]
        for path in rng.sample(paths, min(len(paths), rng.choice((1, 1, 2, 4)))):
            how, content = _damaged(rng, files[path], before.get((name, path)))
            disk.give_back(path, content)
            nemesis.note(f"{path} on {name} is {how}")
        nemesis.restart(name)

    how = "stop" if polite else "kill"
    nemesis.note(f"{how} {name}; it starts {nemesis.later(strike)} ms later, and some of its files are damaged")


def _is_beside_logs(path: str) -> bool:
    return _BESIDE_LOGS.search(path) is not None


def _damaged(rng: random.Random, content: bytes, older: bytes | None) -> tuple[str, bytes]:
    """Damage the content of a file, by a randomly chosen kind of damage."""
    ways = ["flipped", "flipped", "zeros", "cut", *(["older"] if older is not None and older != content else [])]
    way = rng.choice(ways)
    if way == "older" and older is not None:
        return way, older
    position = rng.randrange(len(content))
    if way == "cut":
        return way, content[:position]
    if way == "zeros":
        return way, bytes(len(content))
    return way, content[:position] + bytes([content[position] ^ 1 << rng.randrange(8)]) + content[position + 1 :]


def lose_directory(nemesis: Nemesis) -> None:
    """The process dies, and a partition's directory is gone when the next one starts, on the one machine of the run to
    which such things happen."""
    name = nemesis.victim
    disk = nemesis.any_disk(name)
    logs = [path for path in disk.files() if path.endswith(".log") and "__cluster_metadata" not in path]
    directories = sorted({path.rpartition("/")[0] for path in logs})
    if not directories:
        return
    path = nemesis.rng.choice(directories)
    nemesis.world.kill(name)
    disk.remove_directory(path)
    nemesis.note(f"{path} of {name} is lost; it starts {nemesis.later(lambda: nemesis.restart(name))} ms later")


def wipe(nemesis: Nemesis) -> None:
    """Replace the disk of a machine by an empty one, always on the same machine of a run."""
    name = nemesis.victim
    nemesis.look()
    if not nemesis.may_destroy():
        return
    nemesis.world.power_cut(name)
    for disk in nemesis.world.machines[name].disks:
        disk.wipe()
    nemesis.note(f"{name} gets a new, empty disk, and starts {nemesis.later(lambda: nemesis.restart(name))} ms later")


def wipe_ahead(nemesis: Nemesis) -> None:
    """As `wipe`, and the machine's clock is days ahead or behind when its node begins anew, as after a dead battery; it
    is put right when everything is healed (schedule 112)."""
    name, by_ms = nemesis.victim, nemesis.rng.choice(DAYS_MS)
    clock = nemesis.world.machines[name].clock
    clock.jump_wall(by_ms)
    nemesis.world.loop.effects["wall-clock-jumped-days"] += 1
    wipe(nemesis)
    nemesis.at_heal(lambda: clock.jump_wall(-by_ms))
    nemesis.note(f"its wall clock is {by_ms} ms off")


def wipe_one(nemesis: Nemesis) -> None:
    """One of a machine's disks is replaced, on the one machine of the run to which such things happen."""
    name = nemesis.victim
    nemesis.look()
    if not nemesis.may_destroy():
        return
    nemesis.world.power_cut(name)
    path, disk = nemesis.rng.choice([("the first", nemesis.disk(name)), *nemesis.world.machines[name].mounted.items()])
    disk.wipe()
    again_ms = nemesis.later(lambda: nemesis.restart(name))
    nemesis.note(f"{name} gets a new, empty disk for {path} directory, and starts {again_ms} ms later")


def unmount_one(nemesis: Nemesis) -> None:
    """A machine starts without one of its disks; later it starts again, with it."""
    name = nemesis.pick()
    path, disk = nemesis.rng.choice(list(nemesis.world.machines[name].mounted.items()))
    if nemesis.world.process(name) is None or not disk.mounted:
        return
    nemesis.world.kill(name)
    disk.unmount()

    def undo() -> None:
        nemesis.world.kill(name)
        disk.mounted = True
        nemesis.note(f"{path} of {name} is mounted again")
        nemesis.restart(name)

    nemesis.note(f"{name} starts without {path} for {nemesis.later(undo)} ms")
    nemesis.restart(name)


def fail_directory(nemesis: Nemesis) -> None:
    """Another disk than the first fails for good while its node runs, which goes on without it; the machine is rebooted
    later, and the disk is well."""
    name = nemesis.pick()
    path, disk = nemesis.rng.choice(list(nemesis.world.machines[name].mounted.items()))
    if nemesis.world.process(name) is None or name in nemesis.damaged:
        return
    faults = disk.faults
    faults.syncs = faults.dir_syncs = 1_000_000
    nemesis.damaged[name] = None

    def reboot() -> None:
        faults.syncs = faults.dir_syncs = 0
        del nemesis.damaged[name]
        nemesis.note(f"reboot {name}: {path} is well again")
        nemesis.world.power_cut(name)
        nemesis.restart(name)

    nemesis.note(f"{path} of {name} syncs nothing any more; reboot it {nemesis.later(reboot)} ms later")
