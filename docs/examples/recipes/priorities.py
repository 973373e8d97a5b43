"""Jobs of two priorities: one topic for each, and a worker that takes a low one only when no high one waits."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from strandline.client import Consumer, ConsumerRecord

HIGH, LOW = "jobs.high", "jobs.low"


class Jobs:
    """One worker's jobs; any number of workers share them."""

    def __init__(self, bootstrap: str) -> None:
        self._high = Consumer(bootstrap, group_id="workers.high", auto_offset_reset="earliest")
        self._low = Consumer(bootstrap, group_id="workers.low", auto_offset_reset="earliest")
        self._high.subscribe(HIGH)
        self._low.subscribe(LOW)

    def take(self, timeout_s: float = 0.02) -> ConsumerRecord | None:
        """The next job, and the one before it is done. None: there was none for so long."""
        return self._high.next_record(0) or self._low.next_record(timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for consumer in (self._high, self._low):
            if kind is None:
                consumer.commit()
            consumer.close()
