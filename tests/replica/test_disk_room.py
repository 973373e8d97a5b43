"""What a broker says of the room on its disk (schedule 57), on a real directory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from strandline.log.disk import DiskError
from strandline.log.free_space import HOLD_MS
from strandline.log.log_dir import LogDir, format_log_dir
from strandline.proto.ids import NodeId
from strandline.replica.disk_health import DiskRoom
from tests.log.helpers import TOPIC_ID, FailingDisk, ManualClock


@dataclass
class Broker:
    """Whose disk it is."""

    log_dir: LogDir
    clock: ManualClock
    said: list[bool]
    disk: FailingDisk
    room: DiskRoom

    def look(self, times: int = 1) -> None:
        for _ in range(times):
            self.room.look()
            self.clock.now_ms += int(HOLD_MS)


@pytest.fixture
def broker(tmp_path: Path) -> Broker:
    disk, clock, path = FailingDisk(), ManualClock(), str(tmp_path)
    format_log_dir(disk, path, "cluster", NodeId(1), TOPIC_ID)
    broker = Broker(LogDir.open(disk, path, clock), clock, [], disk, None)  # type: ignore[arg-type]
    broker.room = DiskRoom(broker.log_dir, clock, lambda: broker.said.append(broker.room.full), lambda: None)
    return broker


def test_a_change_is_told_once(broker: Broker) -> None:
    broker.look(3)
    assert broker.said == []
    broker.room.ran_out()
    broker.room.ran_out()
    assert broker.said == [True]
    broker.look(3)
    assert broker.said == [True, False]
    assert not Path(broker.log_dir.path, ".room").exists()


def test_a_quota_is_no_room(broker: Broker) -> None:
    """The file system has bytes left, and no write gets any."""
    broker.disk.bytes_left = 0
    broker.room.ran_out()
    broker.look(10)
    assert broker.said == [True]
    assert not Path(broker.log_dir.path, ".room").exists()
    broker.disk.bytes_left = None
    broker.look(2)
    assert broker.said == [True, False]


def test_a_file_system_that_tells_nothing_is_no_room(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """And it does not make a disk full either."""

    def fails(path: str) -> int:
        raise DiskError(5, "Input/output error", path)

    monkeypatch.setattr(broker.disk, "free_bytes", fails)
    broker.look(3)
    assert broker.said == []
    broker.room.ran_out()
    broker.look(10)
    assert broker.said == [True]
