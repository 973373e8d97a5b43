"""Apache Kafka's own TransactionalMessageCopier as part of the load: it copies a partition in transactions, with the
offsets of its group, and is killed now and then. Readers of committed records see each record once, in its order."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from strandline.chaos.checkers.history import Partition, Poll, Send, Status
from strandline.chaos.checkers.journal import Recorder
from strandline.chaos.live.clients.foreign import now_ms, run_process
from strandline.chaos.live.clients.options import (
    CLASS_PATH,
    COPIES,
    FINAL_S,
    FLUSH_S,
    ORIGINALS,
    SWEEP_S,
    ClientOptions,
    InputEnd,
)
from strandline.chaos.live.target import pause
from strandline.client import Consumer, Producer
from strandline.proto.errors import StrandlineError
from strandline.proto.json_text import read_json

COPIER = "org.apache.kafka.tools.TransactionalMessageCopier"
JAVA = ("java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx128m")
SIZE = 40
"""Records of one transaction."""

KILLED = 0.3
"""Share of the copier's lives that are ended by SIGKILL, at any moment of their first seconds."""

LIFE_S = 8.0
SOURCE, TARGET = Partition(ORIGINALS, 0), Partition(COPIES, 0)


class CopyClient:
    """A producer that fills the source, and one copier after the other: each copies what is there when it starts."""

    def __init__(self, options: ClientOptions, recorder: Recorder) -> None:
        self.options = options
        self.errors: dict[str, int] = {}
        self._recorder = recorder
        self._lock = threading.Lock()
        self._rng = random.Random(options.seed)

    def _failed(self, what: str) -> None:
        self.errors[what] = self.errors.get(what, 0) + 1

    # The source

    def _produce(self, over: threading.Event) -> None:
        rng = random.Random(f"{self.options.seed}-source")
        values = lives = 0
        while not over.is_set():
            lives += 1
            with Producer(self.options.bootstrap, delivery_timeout_ms=60_000, **self.options.settings) as producer:
                failed = threading.Event()
                while not over.is_set() and not failed.is_set():
                    pause(rng.uniform(0, self.options.gap_ms) / 1000)
                    values += 1
                    value = f"{self.options.name}-{values}"
                    with self._lock:
                        send = Send(f"{self.options.name}-{lives}", SOURCE, value, invoked_ms=now_ms())
                        self._recorder.send(send)
                    try:
                        future = producer.send(SOURCE.topic, value.encode(), partition=0)
                    except StrandlineError as error:
                        send.status, send.completed_ms = Status.FAIL, now_ms()
                        self._failed(type(error).__name__)
                        break
                    future.add_done_callback(partial(self._settled, send, failed))

    def _settled(self, send: Send, failed: threading.Event, future: Any) -> None:
        send.completed_ms = now_ms()
        error = future.exception()
        if error is None:
            send.offset, send.status = future.result().offset, Status.OK
            return
        send.status = Status.INFO
        self._failed(type(error).__name__)
        failed.set()  # its order is that of another producer from now on

    # The copier

    def _command(self) -> list[str]:
        told = {
            "broker-list": self.options.bootstrap, "input-topic": ORIGINALS, "input-partition": "0",
            "output-topic": COPIES, "consumer-group": "chaos-copier", "transactional-id": "chaos-copier",
            "transaction-size": str(SIZE), "transaction-timeout": "10000",
        }  # fmt: skip
        words = [text for name, value in told.items() for text in (f"--{name}", value)]
        return [*JAVA, "-cp", os.environ[CLASS_PATH], COPIER, *words, "--enable-random-aborts", "--use-group-metadata"]

    @contextlib.contextmanager
    def _copier(self, output: int = subprocess.DEVNULL) -> Iterator[subprocess.Popen[str]]:
        with subprocess.Popen(
            self._command(), stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.DEVNULL, text=True
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def _life(self, over: InputEnd) -> None:
        """One copier, until it has ended or is killed."""
        strike = self._rng.uniform(0, LIFE_S) if self._rng.random() < KILLED else FLUSH_S
        deadline = time.monotonic() + strike
        with self._copier() as process:
            while process.poll() is None and time.monotonic() < deadline and not over():
                pause(SWEEP_S)
                with self._lock:
                    self._recorder.sweep()
            if process.poll() not in (None, 0):
                self._failed(f"copier ended with {process.returncode}")

    def run(self) -> None:
        """Fill and copy until standard input ends."""
        over, stop = InputEnd(), threading.Event()
        source = threading.Thread(target=self._produce, args=(stop,), daemon=True)
        source.start()
        while not over():
            self._life(over)
        stop.set()
        source.join(FLUSH_S)
        self._recorder.errors(self.errors)

    # The end

    def run_final(self) -> int:
        """Let a copier come to the end of the source, and read both topics. Returns the exit code."""
        deadline = time.monotonic() + FINAL_S
        left: int | None = None
        while left != 0:
            if time.monotonic() > deadline:
                sys.stderr.write(f"the copier does not come to the end of {SOURCE}: {left} records are left\n")
                return 1
            with self._copier(subprocess.PIPE) as process:
                out, _ = process.communicate(timeout=max(deadline - time.monotonic(), 1))
                told = [read_json(line) for line in out.splitlines() if line.startswith("{") and line.endswith("}")]
                left = int(told[-1]["remaining"]) if told and process.returncode == 0 else None
        originals = self._committed(SOURCE)
        copies = self._committed(TARGET)
        self._note(originals, copies)
        return 0

    def _committed(self, where: Partition) -> list[tuple[int, str]]:
        """Offsets and values of all that is committed."""
        found: list[tuple[int, str]] = []
        settings = {"isolation_level": "read_committed", "auto_offset_reset": "earliest", **self.options.settings}
        with Consumer(self.options.bootstrap, **settings) as consumer:
            consumer.assign([where])
            (end,) = consumer.end_offsets([where]).values()
            while consumer.position(where) < end:
                found += [(record.offset, (record.value or b"").decode()) for record in consumer.poll(0.5)]
        return found

    def _note(self, originals: list[tuple[int, str]], copies: list[tuple[int, str]]) -> None:
        """Each copy as a record of its own, which the copier has sent in the order of the originals: that is what is
        judged."""
        at = now_ms()
        name = f"{self.options.name}-reader"
        self._recorder.poll(
            Poll(name, [(SOURCE, *one) for one in originals], invoked_ms=at, completed_ms=at, final=True)
        )
        offsets = {value: offset for offset, value in copies}
        for _, value in originals:
            send = Send("copier", TARGET, f"{value}.copy", invoked_ms=at)
            self._recorder.send(send)
            send.offset, send.completed_ms, send.status = offsets.get(value), at, Status.OK
        copied = [(TARGET, offset, f"{value}.copy") for offset, value in copies]
        self._recorder.poll(Poll(name, copied, invoked_ms=at, completed_ms=at, final=True))


if __name__ == "__main__":
    sys.exit(run_process(CopyClient))
