"""How much is sent ahead of a follower's disk, by how long its syncs take (rule B50)."""

from __future__ import annotations

from strandline.replica.backlog import BASE_MS, BYTES_MAX, BYTES_MIN, CHUNK_BYTES, DELAY_MIN_MS, Backlog


class Disk:
    """Syncs everything that it was sent after a while."""

    def __init__(self) -> None:
        self.backlog = Backlog()
        self.now_ms = 0.0
        self._offset = 0

    def take(self, ms: float) -> int:
        """Fill the backlog up, sync it all after so long, and return the bound of then."""
        while self.backlog.has_room:
            self._offset += 1
            self.backlog.sent(1, self._offset, CHUNK_BYTES, self.now_ms)
        self.now_ms += ms
        assert self.backlog.synced(1, self._offset, self.now_ms)
        assert self.backlog.bytes == 0
        return self.backlog.bound


def test_a_quick_disk_gets_more_and_more() -> None:
    disk = Disk()
    bounds = [disk.take(1.0) for _ in range(20)]
    assert bounds == sorted(bounds)
    assert bounds[-1] == BYTES_MAX


def test_a_disk_that_slows_down_gets_less() -> None:
    """Half as much for each time that it was too late, however many chunks were: they were sent before it was known."""
    disk = Disk()
    for _ in range(20):
        disk.take(1.0)
    assert disk.take(DELAY_MIN_MS + 1) == BYTES_MAX // 2
    assert disk.take(DELAY_MIN_MS + 1) == BYTES_MAX // 4
    for _ in range(5):
        disk.take(DELAY_MIN_MS + 1)
    assert disk.backlog.bound == BYTES_MIN
    assert disk.take(1.0) > BYTES_MIN


def test_a_disk_that_is_slow_by_itself_is_used() -> None:
    """Its quickest sync takes 20 ms: twice as much is none too long, and three times as much is."""
    disk = Disk()
    for _ in range(20):
        disk.take(20.0)
    assert disk.take(39.0) == BYTES_MAX
    assert disk.take(60.0) == BYTES_MAX // 2


def test_a_disk_that_became_slow_for_good_is_used_again() -> None:
    disk = Disk()
    disk.take(1.0)
    while disk.now_ms < 3 * BASE_MS:
        disk.take(100.0)
    assert disk.take(100.0) == BYTES_MAX


def test_what_is_forgotten_makes_room() -> None:
    """A subscription ends; another's bytes stay."""
    backlog = Backlog()
    backlog.sent(1, 5, 600, 0.0)
    backlog.sent(2, 5, 500, 0.0)
    assert backlog.forget(1)
    assert not backlog.forget(1)
    assert not backlog.synced(1, 5, 1.0)
    assert backlog.bytes == 500
    assert backlog.synced(2, 4, 1.0)
    assert backlog.bytes == 500, "durable up to 4, and it ends at 5"
