"""What a node makes of a damaged file at its start, held against the table in docs/storage.md (rule B31)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

import pytest

from strandline.chaos.cluster import DATA
from strandline.log.checkpoints import CLEAN_SHUTDOWN, copy_of
from strandline.log.log_dirs import FILE_NAME
from strandline.proto.marks import counts
from strandline.replica.states import Role
from tests.schedules.recovery.ruin import CHECKPOINT_MS, Ruin

PAGE = Path(__file__).resolve().parents[2] / "docs" / "storage.md"
DAMAGES = ("flip", "zeros", "cut", "older")
SETTINGS = {"metadata.log.max.record.bytes.between.snapshots": "1000", "log.retention.check.interval.ms": "1000"}
PLACES = {FILE_NAME, copy_of(FILE_NAME)}
"""Nodes of several directories have them."""
RARE = {
    ".lock",
    "recovery-findings",
    *PLACES,
    "bootstrap-records",
    "T-P/*.log",
    "T-P/*.txnindex",
    "__cluster_metadata-0/*.log",
}
"""Rows of files that this cluster does not have, or whose damage is for other tests: that of the logs themselves."""


class Row(NamedTuple):
    """A file, and in a word what becomes of it for each damage."""

    file: str
    outcomes: dict[str, str]


def rows() -> Iterator[Row]:
    """The table of the page."""
    section = PAGE.read_text().split("## What a node reads at its start")[1].split("\n## ")[0]
    for line in section.splitlines():
        found = re.match(r"\| `([^`]+)` \|", line)
        if found is not None:
            cells = [cell.strip() for cell in line.strip("|").split("|")][2:]
            yield Row(found[1], dict(zip(DAMAGES, cells, strict=True)))


class Starting(Ruin):
    """A cluster of which one node finds one damaged file after the other."""

    node = "n1"

    def paths(self) -> dict[str, bytes]:
        """What the node has, by its name in the table."""
        found = {}
        for path, content in sorted(self.disk(self.node).files().items()):
            name = path.removeprefix(f"{DATA}/").replace("t-0/", "T-P/")
            if path.startswith(f"{DATA}/") and content and not name.startswith("__consumer"):
                found[name] = content
        return found

    async def down(self, *, politely: bool) -> None:
        if politely:
            self.cluster.stop(self.node)
            await self.until(lambda: not self.is_alive(self.node), "it does not stop")
        else:
            self.kill(self.node)

    def is_whole(self) -> bool:
        """It is up, and its replica is in sync."""
        live = self.cluster.live.get(self.node)
        up = live is not None and live.process.alive and live.node.ready and live.node.broker is not None
        return up and self.role(self.node) in (Role.FOLLOWER, Role.LEADER) and len(self.partition().isr) == 3

    async def up(self, name: str = "") -> bool:
        """Start it, and wait until it is whole or has ended. True if it has set a log aside meanwhile."""
        before = counts()["rotten-log-set-aside"]
        self.start(self.node)
        await self.until(lambda: not self.is_alive(self.node) or self.is_whole(), f"neither in sync nor ended: {name}")
        return counts()["rotten-log-set-aside"] > before

    async def outcome(self, name: str, content: bytes) -> str:
        """What a start makes of it; everything is as it was afterwards."""
        path = f"{DATA}/{name.replace('T-P/', 't-0/')}"
        disk = self.disk(self.node)
        whole = disk.files()[path]
        disk.give_back(path, content)
        aside = await self.up(name)
        if self.is_alive(self.node):
            return "fetched again" if aside else "starts"
        disk.give_back(path, whole)
        await self.up()
        return "ends"


def damaged(content: bytes, damage: str, older: bytes | None) -> bytes | None:
    """None: the disk cannot give that back."""
    match damage:
        case "flip":
            at = len(content) * 2 // 3
            return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
        case "zeros":
            return bytes(len(content))
        case "cut":
            return content[: len(content) // 2]
    return None if older == content else older


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("directories", [1, 2])
def test_the_table_says_what_happens(directories: int, damage: str) -> None:
    """Every file of a node in use, damaged while it is down: the table has a row for it that says whether the node
    starts; and no acknowledged record is lost by any of it."""
    unlike: list[str] = []
    these = [row for row in rows() if (row.file in PLACES if directories > 1 else row.file not in RARE)]

    async def story(ruin: Starting) -> None:
        ruin.cluster.may_fall = {ruin.node: None}
        await ruin.write(0, 10)
        await ruin.world.sleep_ms(CHECKPOINT_MS)
        await ruin.down(politely=True)
        older = ruin.paths()
        await ruin.up()
        await ruin.create("another")
        await ruin.write(10, 20)
        await ruin.world.sleep_ms(CHECKPOINT_MS)
        for row in these:
            await ruin.down(politely=row.file in (CLEAN_SHUTDOWN, "*/*.snapshot"))
            names = [name for name in ruin.paths() if fnmatch(name, row.file)]
            if not names:
                unlike.append(f"{row.file}: none of them")
                await ruin.up()
                continue
            content = damaged(ruin.paths()[names[-1]], damage, older.get(names[-1]))
            said = row.outcomes[damage]
            if content is None:
                found = "starts"
                await ruin.up()
            else:
                found = await ruin.outcome(names[-1], content)
            kind = next((kind for kind in ("ends", "fetched again") if said.startswith(kind)), "starts")
            if kind != found:
                unlike.append(f"{names[-1]}: {found}, and the table says: {said}")
        await ruin.nothing_is_lost()

    Starting(31, settings=SETTINGS, directories=directories).play(story)
    assert not unlike, "\n".join(unlike)


def test_the_table_has_every_file() -> None:
    """A file that is new needs a row."""

    async def story(ruin: Starting) -> None:
        await ruin.write(0, 10)
        await ruin.world.sleep_ms(CHECKPOINT_MS)
        await ruin.down(politely=True)
        patterns = [row.file for row in rows()]
        missing = [name for name in ruin.paths() if not any(fnmatch(name, pattern) for pattern in patterns)]
        assert missing == []

    Starting(31, settings=SETTINGS).play(story)
