"""Faults that a test requests from a node: their injection, and the count of operations that each has affected.

POST /faults takes a JSON object with any of

    {"fail_next": {"api": "Produce", "error": "NOT_LEADER_OR_FOLLOWER", "times": 2}}
    {"slow_disk_ms": 50}           delay of every group sync and cold read until another value is set; 0: none
    {"clock_ahead_ms": 86400000}   the node's wall clock is this much ahead until another value is set; 0: correct
    {"clear": true}                end all faults; their counts are kept

and answers with the faults that it created. GET /faults answers with all faults since the start of the process. Each
has an `id`, and `met`, the number of requests, syncs or reads that it has affected.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from http import HTTPStatus
from typing import Any

from strandline.cluster.broker.api import ServedApi
from strandline.cluster.broker.request import Exchange
from strandline.cluster.node.http.protocol import Page
from strandline.log.disk import Disk, File
from strandline.log.watched_disk import DiskAbove
from strandline.proto.error_codes import ErrorCode
from strandline.proto.json_text import read_json
from strandline.proto.ports import Clock


class SlowDisk(DiskAbove):
    """`disk`, with `delay` awaited after every group sync and every cold read, before it is reported as done.

    The delay follows the disk's work because the files of a sync must not be closed or deleted between the call and
    that work. The rare blocking syncs of small files (votes, checkpoints) are not delayed: that would block the node's
    event loop, which is another fault, a pause.
    """

    def __init__(self, disk: Disk, delay: Callable[[], Awaitable[None]]) -> None:
        super().__init__(disk)
        self._delay = delay
        self.sync_now = disk.sync_now
        self.sync_dir = disk.sync_dir

    def sync(self, files: Sequence[File], directories: Sequence[str] = (), wait_ms: float = 0.0) -> Awaitable[None]:
        """Sync as the disk does, and report it later. Raises DiskError."""
        return self._told_later(self._disk.sync(files, directories, wait_ms))

    async def _told_later(self, begun: Awaitable[None]) -> None:
        await begun
        await self._delay()

    async def pread_cold(self, file: File, size: int, position: int) -> bytes:
        """Read as the disk does, and report it later. Raises DiskError."""
        data = await self._disk.pread_cold(file, size, position)
        await self._delay()
        return data


class ShiftedClock:
    """`clock` with the wall clock ahead by `ahead_ms()`. File times and TLS use the machine's clock."""

    def __init__(self, clock: Clock, ahead_ms: Callable[[], int]) -> None:
        self.monotonic_ms = clock.monotonic_ms
        self._clock = clock
        self._ahead_ms = ahead_ms

    def wall_ms(self) -> int:
        """Wall clock of the machine in ms, plus `ahead_ms()`."""
        return self._clock.wall_ms() + self._ahead_ms()


TIMES_MAX = 1_000_000
DELAY_MS_MAX = 60_000
AHEAD_MS_MAX = 100 * 365 * 24 * 3_600_000
"""Maximum milliseconds by which a clock may be ahead: a century, as after a typing error in a date."""


ASKED = frozenset({"fail_next", "slow_disk_ms", "clock_ahead_ms", "clear"})


class BadFault(ValueError):
    """Error: the requested fault is invalid; the message says what is allowed."""


@dataclass
class FailNext:
    """Fault: the next `times` requests of `api` are answered with `error`."""

    id: int
    api: str
    error: str
    times: int
    met: int = 0
    kind: str = "fail_next"


@dataclass
class SlowDiskFault:
    """Fault: group syncs and cold reads take `delay_ms` longer."""

    id: int
    delay_ms: float
    met: int = 0
    kind: str = "slow_disk"


@dataclass
class ClockAheadFault:
    """Fault: the wall clock is `ahead_ms` ahead; `met` counts the reads of the clock."""

    id: int
    ahead_ms: int
    met: int = 0
    kind: str = "clock_ahead"


class FaultInjection:
    """The faults of one node. It does not exist if the setting is off, so that nothing has to check for faults."""

    def __init__(self) -> None:
        self.faults: list[FailNext | SlowDiskFault | ClockAheadFault] = []
        """All requested faults, in order."""
        self._armed: dict[str, list[FailNext]] = {}
        self._apis: dict[str, str] = {}
        self._slow: SlowDiskFault | None = None
        self._ahead: ClockAheadFault | None = None

    # --- requesting faults ---

    def fail_next(self, api: str, error: str, times: int = 1) -> FailNext:
        """Answer the next `times` requests of an API with an error. Several faults of an API apply one after the other.

        Args:
            api: Kafka's name of the API, "InitProducerId" or "INIT_PRODUCER_ID".
            error: Kafka's name of the error, "NOT_LEADER_OR_FOLLOWER".

        Raises:
            BadFault: an unknown API or error, or a number out of range.
        """
        name = self._apis.get(_plain(api))
        if name is None:
            raise BadFault(f"api {api!r}: one of {', '.join(sorted(self._apis.values()))}")
        if error not in ErrorCode.__members__ or error == ErrorCode.NONE.name:
            raise BadFault(f"error {error!r}: the name of one of Kafka's errors, such as NOT_LEADER_OR_FOLLOWER")
        if not isinstance(times, int) or not 1 <= times <= TIMES_MAX:
            raise BadFault(f"times {times!r}: a number from 1 to {TIMES_MAX}")
        fault = FailNext(self._next_id(), name, error, times)
        self.faults.append(fault)
        self._armed.setdefault(name, []).append(fault)
        return fault

    def slow_disk(self, delay_ms: float) -> SlowDiskFault | None:
        """Delay group syncs and cold reads by `delay_ms`, from the next one on; 0 ends the fault. Raises BadFault."""
        if not 0 <= delay_ms <= DELAY_MS_MAX:
            raise BadFault(f"slow_disk_ms {delay_ms}: milliseconds from 0 to {DELAY_MS_MAX}")
        self._slow = SlowDiskFault(self._next_id(), delay_ms) if delay_ms else None
        if self._slow is not None:
            self.faults.append(self._slow)
        return self._slow

    def clock_ahead(self, ahead_ms: int) -> ClockAheadFault | None:
        """Set the wall clock ahead of the machine's, or back if negative; 0 ends the fault. Raises BadFault."""
        if isinstance(ahead_ms, bool) or not isinstance(ahead_ms, int) or abs(ahead_ms) > AHEAD_MS_MAX:
            raise BadFault(f"clock_ahead_ms {ahead_ms!r}: milliseconds from -{AHEAD_MS_MAX} to {AHEAD_MS_MAX}")
        self._ahead = ClockAheadFault(self._next_id(), ahead_ms) if ahead_ms else None
        if self._ahead is not None:
            self.faults.append(self._ahead)
        return self._ahead

    def clear(self) -> None:
        """End all faults."""
        self._armed.clear()
        self._slow = self._ahead = None

    def _next_id(self) -> int:
        return len(self.faults) + 1

    # --- injecting faults ---

    def intercept(self, apis: Mapping[int, ServedApi]) -> dict[int, ServedApi]:
        """Wrap the APIs: each checks first whether a fault makes it fail."""
        self._apis = {_plain(served.api.title): served.api.title for served in apis.values()}
        return {key: self._intercepted(served) for key, served in apis.items()}

    def _intercepted(self, served: ServedApi) -> ServedApi:
        armed = self._armed

        def handle(exchange: Exchange, body: memoryview) -> None:
            waiting = armed.get(served.api.title)
            if not waiting or not served.serves(exchange.context.version):
                served.handle(exchange, body)
                return
            fault = waiting[0]
            if not served.refuse_all(exchange, body, ErrorCode[fault.error]):
                served.handle(exchange, body)
                return
            fault.met += 1
            if fault.met == fault.times:
                waiting.pop(0)

        return replace(served, handle=handle)

    def slow(self, disk: Disk) -> SlowDisk:
        """Wrap a disk so that the current fault slows it."""
        return SlowDisk(disk, self._delay)

    def shift(self, clock: Clock) -> ShiftedClock:
        """Wrap a clock so that the current fault shifts its wall clock."""
        return ShiftedClock(clock, self._ahead_ms)

    def _ahead_ms(self) -> int:
        if self._ahead is None:
            return 0
        self._ahead.met += 1
        return self._ahead.ahead_ms

    async def _delay(self) -> None:
        slow = self._slow
        if slow is not None:
            slow.met += 1
            await asyncio.sleep(slow.delay_ms / 1000)

    # --- over HTTP ---

    def page(self) -> Page:
        """Answer GET /faults."""
        return _json({"faults": [asdict(fault) for fault in self.faults]})

    def command(self, body: bytes) -> Page:
        """Answer POST /faults."""
        known = len(self.faults)
        try:
            self._obey(read_json(body))
        except (BadFault, ValueError, TypeError) as error:
            return _json({"error": str(error)}, HTTPStatus.BAD_REQUEST)
        return _json({"faults": [asdict(fault) for fault in self.faults[known:]]})

    def _obey(self, asked: Any) -> None:
        if not isinstance(asked, dict) or not asked or not asked.keys() <= ASKED:
            raise BadFault('a JSON object with "fail_next", "slow_disk_ms", "clock_ahead_ms" or "clear"')
        if asked.get("clear"):
            self.clear()
        if "slow_disk_ms" in asked:
            self.slow_disk(asked["slow_disk_ms"])
        if "clock_ahead_ms" in asked:
            self.clock_ahead(asked["clock_ahead_ms"])
        if "fail_next" in asked:
            self.fail_next(**asked["fail_next"])


def _plain(api: str) -> str:
    return api.replace("_", "").lower()


def _json(value: object, status: HTTPStatus = HTTPStatus.OK) -> Page:
    return Page(json.dumps(value).encode() + b"\n", "application/json", status)
