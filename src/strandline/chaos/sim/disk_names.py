"""The directories of a simulated disk: names as written, and those that no sync covers yet.

A directory is a few blocks of the disk. A sync of it that fails marks them clean, as it does with a file's pages: the
names are seen as before, and another sync succeeds without writing anything. A block is dirty again when a name in it
changes. Nobody can tell which names share a block, so what is there counts as written again only when that very name
changes again. (What is gone for good has no block of its own: any change in the directory takes it along. That is
where this model is kinder than a disk: a block all of whose names are gone would be left out.)
"""

from __future__ import annotations

import errno
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from strandline.chaos.sim.disk_image import FileNode
from strandline.log.disk import DiskError


class DirNode:
    """A directory: its names as written."""

    def __init__(self) -> None:
        self.entries: dict[str, FileNode | DirNode] = {}
        self.lost: dict[str, FileNode | DirNode | None] = {}
        """Names whose change a failed sync should have written: what is really on the disk under them."""

    def lost_under_another_name(self, node: FileNode | DirNode | None) -> bool:
        """True if it was renamed, and its new name is not on the disk: a rename is one step, and no half of it is
        there."""
        return any(found is node and name in self.lost for name, found in self.entries.items())


@dataclass(eq=False)
class NameChange:
    """One atomic, journalled change of names: a create, an unlink, a rename."""

    steps: list[tuple[DirNode, str, FileNode | DirNode | None, FileNode | DirNode | None]]
    """(directory, name, node before, node after)."""

    def touches(self, directory: DirNode) -> bool:
        return any(step[0] is directory for step in self.steps)

    def apply(self) -> None:
        for directory, name, _, after in self.steps:
            _set(directory, name, after)

    def revert(self) -> None:
        for directory, name, before, _ in reversed(self.steps):
            _set(directory, name, before)

    def written(self) -> None:
        """Note that the blocks that hold these names got to the disk."""
        for directory, name, *_ in self.steps:
            directory.lost.pop(name, None)
            for gone in [other for other in directory.lost if other not in directory.entries]:
                if not directory.lost_under_another_name(directory.lost[gone]):
                    del directory.lost[gone]


def _set(directory: DirNode, name: str, node: FileNode | DirNode | None) -> None:
    if node is None:
        directory.entries.pop(name, None)
    else:
        directory.entries[name] = node


def _adds(change: NameChange, node: FileNode | DirNode) -> bool:
    """True if the change gives the node its first name."""
    steps = change.steps
    return any(after is node for *_, after in steps) and not any(before is node for *_, before, _ in steps)


class Names:
    """The directory tree, with the changes that no `sync_dir` covers yet."""

    def __init__(self) -> None:
        self.root = DirNode()
        self.unsynced: list[NameChange] = []

    def find(self, path: str) -> FileNode | DirNode | None:
        node: FileNode | DirNode | None = self.root
        for part in path.split("/"):
            if part:
                if not isinstance(node, DirNode):
                    return None
                node = node.entries.get(part)
        return node

    def parent(self, path: str) -> tuple[DirNode, str]:
        """The directory that holds, or would hold, `path`, and the last name.

        Raises:
            FileNotFoundError: the directory does not exist.
            DiskError: a file stands where a directory should.
        """
        head, _, name = path.rstrip("/").rpartition("/")
        node: FileNode | DirNode | None = self.root
        for part in head.split("/"):
            if part and isinstance(node, DirNode):
                node = node.entries.get(part)
        if isinstance(node, FileNode):
            raise DiskError(errno.ENOTDIR, "Not a directory", path)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        return node, name

    def change(self, *steps: tuple[DirNode, str, FileNode | DirNode | None]) -> None:
        """Carry out one atomic change of names."""
        change = NameChange([(where, name, where.entries.get(name), after) for where, name, after in steps])
        change.apply()
        self.unsynced.append(change)

    def begin_sync(self, directory: DirNode) -> list[NameChange]:
        """Begin a sync of `directory`; returns the changes that it covers."""
        return [change for change in self.unsynced if change.touches(directory)]

    def complete_sync(self, covered: Sequence[NameChange]) -> None:
        """Make the covered changes durable, and with them what else their blocks hold."""
        done = set(covered)
        self.unsynced = [change for change in self.unsynced if change not in done]
        for change in covered:
            change.written()

    def fail_sync(self, directory: DirNode, covered: Sequence[NameChange]) -> None:
        """Fail the sync of `directory`: nothing will write these changes of its names any more."""
        failed = set(covered)
        left: list[NameChange] = []
        for change in self.unsynced:
            if change in failed:
                for where, name, before, _ in change.steps:
                    if where is directory:
                        directory.lost.setdefault(name, before)
                change.steps = [step for step in change.steps if step[0] is not directory]
            if change.steps:
                left.append(change)
        self.unsynced = left

    def survives(self, directory: DirNode, node: FileNode | DirNode) -> bool:
        """Whether every power cut at this instant leaves `node`, which is in `directory`, under some name there."""
        created = any(_adds(change, node) for change in self.unsynced)
        lost = any(found is node and name in directory.lost for name, found in directory.entries.items())
        return not created and (not lost or any(found is node for found in directory.lost.values()))

    def crash(self, rng: random.Random) -> list[NameChange]:
        """Lose unsynced changes: all after some point of the journal, or, on a looser file system, any of them; and
        what failed syncs left out. Returns what was lost."""
        lost, kept = self._draw(rng)
        for change in reversed(lost):
            change.revert()
        for change in kept:
            change.written()
        for directory in self._directories():
            if directory.lost:
                now = [(directory, name, node, directory.entries.get(name)) for name, node in directory.lost.items()]
                left_out = NameChange(now)
                left_out.revert()
                directory.lost.clear()
                lost.append(left_out)
        return lost

    def _draw(self, rng: random.Random) -> tuple[list[NameChange], list[NameChange]]:
        """Choose at random which of the unsynced changes are lost. Returns the lost ones and the others."""
        changes, self.unsynced = self.unsynced, []
        if not changes:
            return [], []
        if rng.random() < 0.5:
            point = rng.randint(0, len(changes))
            return changes[point:], changes[:point]
        lost: list[NameChange] = []
        kept: list[NameChange] = []
        spoilt: list[tuple[DirNode, str]] = []
        for change in changes:
            names = [(where, name) for where, name, _, _ in change.steps]
            if rng.random() < 0.5 or any(where is w and name == n for where, name in names for w, n in spoilt):
                lost.append(change)
                spoilt.extend(names)
            else:
                kept.append(change)
        return lost, kept

    def evict(self) -> None:
        """Drop clean directories from memory: readers find what is on the disk."""
        for directory in self._directories():
            if directory.lost and not any(change.touches(directory) for change in self.unsynced):
                for name, node in directory.lost.items():
                    _set(directory, name, node)
                directory.lost.clear()

    def _directories(self) -> Iterator[DirNode]:
        """Every directory, parents first: what hangs on a name that comes back, or goes, is looked at afterwards."""
        stack = [self.root]
        while stack:
            directory = stack.pop()
            yield directory
            stack += [node for node in directory.entries.values() if isinstance(node, DirNode)]

    def files(self) -> list[tuple[str, FileNode]]:
        """Every file with its path, in the order of paths."""
        found: list[tuple[str, FileNode]] = []
        stack: list[tuple[str, DirNode]] = [("", self.root)]
        while stack:
            path, directory = stack.pop()
            for name, node in directory.entries.items():
                if isinstance(node, DirNode):
                    stack.append((f"{path}/{name}", node))
                else:
                    found.append((f"{path}/{name}", node))
        return sorted(found, key=lambda item: item[0])
