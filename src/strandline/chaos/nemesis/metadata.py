"""Faults of the metadata directory: lost, or rotten in any of its files, on the machine chosen for such faults.

The operator of the machine acts as its node's messages say: a directory that rotted is moved away, and the node is
restarted. What follows from that (an observer, and its vote restored) is the operator's business (`operator`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from strandline.chaos.checkers.metadata_logs import DIRECTORY
from strandline.controller.quorum.state_file import PROMISE

if TYPE_CHECKING:
    from strandline.chaos.nemesis.nemesis import Nemesis

_PROMISE_PATH = f"{DIRECTORY.rpartition('/')[0]}/{PROMISE}"


def lose(nemesis: Nemesis) -> None:
    """The metadata directory is gone while the node is down; a supervisor starts the node again."""
    name = nemesis.victim
    nemesis.look()
    if not nemesis.may_destroy():
        return
    nemesis.world.kill(name)
    nemesis.disk(name).remove_directory(DIRECTORY)
    nemesis.world.loop.effects["metadata-lost"] += 1
    duration_ms = nemesis.later(lambda: nemesis.restart(name))
    nemesis.note(f"kill {name}; its metadata directory is lost, and it starts {duration_ms} ms later")


def rot(nemesis: Nemesis) -> None:
    """A bit turns over in the metadata log, a snapshot of it, quorum-state, quorum-promise, or the recovery point.
    Until somebody sees it, the node may find it at any restart: it goes on, is in doubt, or does not start."""
    name = nemesis.victim
    disk = nemesis.disk(name)
    files = {path: content.rstrip(b"\0") for path, content in disk.files().items()}
    paths = [path for path in files if path.startswith(DIRECTORY) or path == _PROMISE_PATH]
    paths = [path for path in paths if files[path]]
    if not paths or DIRECTORY in disk.rotten or not nemesis.may_destroy():
        return
    path = nemesis.rng.choice(paths)
    position, bit = nemesis.rng.randrange(len(files[path])), nemesis.rng.randrange(8)
    disk.flip_bit(path, position, bit)
    disk.rotten[DIRECTORY] = None
    nemesis.excuse(name)
    wipes = disk.wipes

    def undo() -> None:
        nemesis.blame(name)
        nemesis.look()
        nemesis.world.kill(name)
        if disk.wipes == wipes:  # else the machine has a new disk since
            disk.rotten.pop(DIRECTORY, None)
            nemesis.note(f"the rotten metadata directory of {name} is moved away, its node is restarted")
            disk.remove_directory(DIRECTORY)
            if path == _PROMISE_PATH:  # then nothing tells how this node voted: it is formatted without a vote
                disk.remove_directory(_PROMISE_PATH)
                nemesis.without_vote[name] = None
        nemesis.restart(name)

    nemesis.note(f"bit {bit} of byte {position} of {path} on {name} turns over")
    nemesis.note(f"somebody will see it {nemesis.later(undo)} ms later")
