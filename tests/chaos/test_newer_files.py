"""A node that finds files of a newer build in its directories does not start, and changes nothing there (rule B35)."""

from __future__ import annotations

import pytest

from strandline.chaos.cluster import DATA
from strandline.log.disk import LOCK_FILE
from strandline.log.formats import format_of, sealed
from tests.chaos.test_files_at_start import CHECKPOINT_MS, SETTINGS, Starting

RELEASE = "9.8"


class Meeting(Starting):
    """A cluster of which one node finds one file of a newer build after the other."""

    def own_files(self) -> list[str]:
        """Files of the node, by their paths below its directories."""
        roots = (f"{DATA}/", *(f"{DATA}-{number}/" for number in range(2, 5)))
        return [path for path in self.disk(self.node).files() if path.startswith(roots)]


def row_of(path: str) -> str:
    """Path in its log directory."""
    return path.removeprefix(DATA).partition("/")[2]


@pytest.mark.parametrize("directories", [1, 2])
def test_every_file_of_a_node_has_a_version_and_a_newer_one_is_refused(
    directories: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each that says its version: in good order and after a kill. The files are byte for byte what they were, and with
    the old one back the node is whole."""
    monkeypatch.setattr("strandline.chaos.cluster._EARLIER_BUILD", 0)  # it takes files away before a start
    met: list[str] = []

    async def story(meeting: Meeting) -> None:
        meeting.cluster.may_fall = {meeting.node: None}
        await meeting.write(0, 10)
        await meeting.world.sleep_ms(CHECKPOINT_MS)
        await meeting.down(politely=True)
        unknown = [path for path in meeting.own_files() if format_of(row_of(path)) is None]
        assert unknown == [], "a file that is new needs a row in strandline.log.formats"
        disk = meeting.disk(meeting.node)
        for round_, path in enumerate(meeting.own_files()):
            row = format_of(row_of(path))
            if row is None or row.guard or row_of(path).startswith("__consumer_offsets"):
                continue
            if round_ % 2:
                await meeting.up(path)
                await meeting.down(politely=False)
            if path not in disk.files():
                continue
            was = disk.files()[path]
            disk.give_back(path, sealed(row.version + 1, RELEASE, was))
            before = {path: data for path, data in disk.files().items() if not path.endswith(LOCK_FILE)}
            meeting.start(meeting.node)
            await meeting.until(lambda: not meeting.is_alive(meeting.node), f"it starts with a newer {path}")
            after = {path: data for path, data in disk.files().items() if not path.endswith(LOCK_FILE)}
            assert after == before, path
            disk.give_back(path, was)
            met.append(row.name)
        await meeting.up()
        await meeting.nothing_is_lost()

    Meeting(35, settings=SETTINGS, directories=directories).play(story)
    assert len(set(met)) >= 10, met
