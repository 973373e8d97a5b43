"""Durations of syncs: whether the event loop blocks for one, and what to do about one that does not end (schedule 58).

A hung sync is a silent failure: no error, no ack, and the leadership stays. So the age of the oldest sync under way is
a health signal. While it is above the limit nothing here counts as durable, and the node is told, so that others may
take its leaderships.
"""

from __future__ import annotations

import asyncio
import errno
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import structlog

from strandline.log.disk import Disk, DiskError, DiskPoisoned, File
from strandline.log.real_sync import SYNC_MANY
from strandline.proto.marks import mark
from strandline.proto.ports import Clock
from strandline.proto.tasks import Report

LIMIT_MS = 0.5
"""Longest time that the loop blocks for one sync. Votes, heartbeats and other connections wait, too: an election
timeout is 1,000 ms or more, a full garbage collection takes 4 ms, parsing 1 MB takes one. A slower disk (in a cloud: 2
to 10 ms) gains nothing from blocking: the second turn of the loop costs 0.02 to 0.1 ms."""

FAST_IN_A_ROW = 16
"""Number of syncs within the limit after which the next one is expected to keep it. A slower sync restarts the count: a
disk that turned slow, or hangs, has cost one limit by then, and one that varies costs one limit in sixteen syncs."""

SHARE = 0.25
"""Share of the loop's time that may be spent blocking: 1,000 syncs of 0.25 ms a second. Above that there is other work
to do meanwhile, and records come in larger groups."""

SAVED_MAX_MS = 4 * LIMIT_MS
"""Maximum milliseconds that an idle loop may save up for a burst."""


class SyncWait:
    """Decides how long the loop blocks for the next sync, from the durations of the last ones.

    Invariant: in any period of T ms, at most SHARE x T + SAVED_MAX_MS are spent blocking.

    A sync in a thread costs the loop a second turn: it selects, is woken, and resumes what it left. On a fast disk that
    is much of the time that a lone record takes. So on a fast disk the loop blocks for the thread instead, briefly: the
    call that syncs is always the thread's, so a disk that hangs blocks the loop for that moment only.
    """

    def __init__(self) -> None:
        self._fast = 0
        self._saved_ms = 0.0
        self._saved_at_ms = 0.0

    def limit_ms(self, now_ms: float) -> float:
        """Maximum milliseconds to block for a sync that begins now; 0: do not block."""
        if self._fast < FAST_IN_A_ROW:
            return 0.0
        earned_ms = (now_ms - self._saved_at_ms) * SHARE
        self._saved_ms = min(SAVED_MAX_MS, self._saved_ms + earned_ms)
        self._saved_at_ms = now_ms
        # rule B18/a-wait-in-place-has-no-end, rule B18/waits-take-all-of-the-time
        return LIMIT_MS if self._saved_ms >= LIMIT_MS else 0.0

    def took(self, duration_ms: float, limit_ms: float) -> None:
        """Take note of a sync of `duration_ms`, for which the loop blocked up to `limit_ms`."""
        self._saved_ms -= min(duration_ms, limit_ms)
        if duration_ms <= LIMIT_MS:  # rule B18/slow-syncs-are-waited-for
            self._fast += 1
        else:
            if limit_ms:
                mark("sync-not-waited-for")
            self._fast = 0


log = structlog.get_logger("strandline.disk")

BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the histogram in seconds: a good NVMe drive takes 0.1 to 1 ms, a cloud's disk 2 to 10 ms."""

LOOKS = 10
"""Number of looks at a sync until its age reaches the limit."""

WARN_SHARE = 0.2
"""Share of the limit at which a warning is logged: at 1 s of 5 s, where etcd warns of a slow fdatasync, too."""

LOST_FACTOR = 4
"""Multiple of the limit after which a sync counts as lost: 20 s for 5 s, CockroachDB's limit."""


@dataclass
class SyncTimes:
    """Histogram of the durations of group syncs."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_S) + 1))
    """Number of syncs in each bucket of `BOUNDS_S`, not cumulative; the last one is for longer syncs."""
    seconds_total: float = 0.0

    def took(self, seconds: float) -> None:
        """Add the duration of one sync."""
        self.counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.seconds_total += seconds


class DiskAbove:
    """Disk on top of another one, which passes all other calls on unchanged."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.busy = False
        self.sync_thread = disk.sync_thread
        self.lock = disk.lock
        self.open = disk.open
        self.exists = disk.exists
        self.listdir = disk.listdir
        self.mkdir = disk.mkdir
        self.rename = disk.rename
        self.unlink = disk.unlink
        self.rmdir = disk.rmdir
        self.free_bytes = disk.free_bytes
        self.total_bytes = disk.total_bytes
        self.modified_ms = disk.modified_ms
        self.boot_id = disk.boot_id
        self.unlink_slowly = disk.unlink_slowly


class WatchedDisk(DiskAbove):
    """A disk with its group syncs timed.

    Attributes:
        times: durations of the syncs that ended.
        waited: number of those for which the event loop blocked (`SyncWait`).
        busy: True if the sync under way was there at the watch's last look, too.
        stalled: True while a sync is older than its limit. Every blocking sync is refused then: it would wait for that
            one, and the event loop with it.
    """

    def __init__(self, disk: Disk, clock: Clock, on_poisoned: Report) -> None:
        """`on_poisoned` is called once, when nothing on this disk can be relied on any more."""
        super().__init__(disk)
        self._clock = clock
        self._on_poisoned: Report | None = on_poisoned
        self._under_way: dict[int, float] = {}
        self._wait = SyncWait()
        self._waits = disk.sync_thread != "python"  # that one answers through the loop alone
        self._number = 0
        self.times = SyncTimes()
        self.waited = 0
        self.stalled = False
        self.on_begin: Callable[[], None] = lambda: None
        """Called when a sync begins."""
        self.pread_cold = disk.pread_cold

    @property
    def oldest(self) -> int:
        """Number of the oldest sync under way; 0 if there is none."""
        return next(iter(self._under_way), 0)

    @property
    def age_ms(self) -> float:
        """Milliseconds since the sync in progress began."""
        began = next(iter(self._under_way.values()), None)
        return 0.0 if began is None else self._clock.monotonic_ms() - began

    def sync(self, files: Sequence[File], directories: Sequence[str] = (), wait_ms: float = 0.0) -> Awaitable[None]:
        """Sync as the disk below does. Raises DiskError. The time to block for it is decided here: 0 if another is
        under way.

        If the caller is cancelled (only by a node that ends), its sync is carried out, but its end is not recorded
        here.
        """
        self._number += 1
        number = self._number
        began_ms = self._clock.monotonic_ms()
        small = not directories and len(files) <= SYNC_MANY
        if small and self._waits and not self._under_way:  # rule B18/waits-behind-another-sync
            wait_ms = max(wait_ms, self._wait.limit_ms(began_ms))
        self._under_way[number] = began_ms
        self.on_begin()
        try:
            sync = asyncio.ensure_future(self._disk.sync(files, directories, wait_ms))
        except BaseException as error:
            self._failed(number, error)
            raise

        def ended(sync: asyncio.Future[None]) -> None:
            if sync.cancelled():
                return
            error = sync.exception()
            if error is not None:
                self._failed(number, error)
                return
            took_ms = self._ended(number)
            if small:
                self._wait.took(took_ms, wait_ms)
                self.waited += wait_ms > 0 and took_ms <= wait_ms

        if sync.done():
            ended(sync)
        else:
            sync.add_done_callback(ended)
        return sync

    def _failed(self, number: int, error: BaseException) -> None:
        self._ended(number)
        if isinstance(error, DiskPoisoned):
            self._poisoned(error)

    def _ended(self, number: int) -> float:
        took_ms = self._clock.monotonic_ms() - self._under_way.pop(number)
        self.times.took(took_ms / 1000)
        return took_ms

    def sync_now(self, files: Sequence[File], directories: Sequence[str] = ()) -> None:
        """Sync as the disk below does. Raises DiskError, also while a sync hangs."""
        self._refuse_if_stalled()
        try:
            self._disk.sync_now(files, directories)
        except DiskPoisoned as error:
            self._poisoned(error)
            raise

    def sync_dir(self, path: str) -> None:
        """Sync a directory as the disk below does. Raises DiskError, also while a sync hangs."""
        self._refuse_if_stalled()
        try:
            self._disk.sync_dir(path)
        except DiskPoisoned as error:
            self._poisoned(error)
            raise

    def _refuse_if_stalled(self) -> None:
        if self.stalled:  # rule B18/blocking-syncs-wait-behind-a-hung-one
            raise DiskError(errno.EIO, f"refused: a sync has been under way for {self.age_ms / 1000:.1f} s", "")

    def _poisoned(self, error: DiskPoisoned) -> None:
        tell, self._on_poisoned = self._on_poisoned, None
        if tell is not None:  # schedule 32/poisoned-disk-is-nobody-s-business
            tell(error)


class SyncWatch:
    """Looks at the oldest sync while one is under way.

    - `on_stalled(age in ms)`: the sync is older than the limit. Until it ends nothing of this disk can be served.
    - `on_recovered`: it has ended after all.
    - `on_lost(age in ms)`: it will never end.

    Looks are counted instead of time: a process that was stopped (SIGSTOP) for a minute has a sync that is a minute
    old, and may have ended long ago.
    """

    def __init__(
        self,
        disk: WatchedDisk,
        timeout_ms: float,
        on_stalled: Callable[[float], None],
        on_recovered: Callable[[], None],
        on_lost: Callable[[float], None],
    ) -> None:
        self._disk = disk
        self._interval_ms = timeout_ms / LOOKS
        self._on_stalled = on_stalled
        self._on_recovered = on_recovered
        self._on_lost = on_lost
        self._timer: asyncio.TimerHandle | None = None
        self._watched = 0
        self._looks = 0
        self._running = False

    def start(self) -> None:
        """Begin to look."""
        self._running = True
        self._disk.on_begin = self._begun
        if self._disk.oldest:
            self._begun()

    def stop(self) -> None:
        """Look no more."""
        self._running = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _begun(self) -> None:
        if self._timer is None and self._running:
            self._timer = asyncio.get_running_loop().call_later(self._interval_ms / 1000, self._look)

    def _look(self) -> None:
        self._timer = None
        oldest = self._disk.oldest
        if oldest != self._watched:
            self._ended()
            self._watched, self._looks = oldest, 0
        if oldest:
            self._begun()
            self._looks += 1
            self._disk.busy = True
            self._judge(self._looks, self._looks * self._interval_ms)  # rule B18/looks-are-a-clock

    def _judge(self, looks: int, age_ms: float) -> None:
        if looks == round(LOOKS * WARN_SHARE):
            log.warning("a sync takes long", seconds=round(age_ms / 1000, 1))
        elif looks == LOOKS:  # rule B18/looks-are-a-clock/2
            mark("sync-hung")
            log.error("a sync does not end", seconds=round(age_ms / 1000, 1))
            self._disk.stalled = True
            self._on_stalled(age_ms)
        elif looks == LOOKS * LOST_FACTOR:
            self._on_lost(age_ms)

    def _ended(self) -> None:
        self._disk.busy = False
        if self._disk.stalled:
            log.warning("the sync that did not end has ended")
            self._disk.stalled = False
            self._on_recovered()
