"""A whole application of Kafka Streams, with `processing.guarantee=exactly_once_v2`: two instances count words.

Each of them reads, writes into a topic of the application's own, keeps a store whose changelog is another one, and
commits all that with its offsets in one transaction.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from pathlib import Path

from interop.applications import Feeder, Program, Reader, broker_down, transaction_is_open
from interop.driver import ToolDriver
from interop.logins import OPEN, Login, as_properties
from interop.suite import World, eventually, same

PARTITIONS = 4
MOVES_ON_S = 150.0
INSTANCES = ("a", "b")


class StreamsApplication(ToolDriver):
    """The instances of one application, by name; each has a directory of its own for its stores."""

    def __init__(self, bootstrap: str, command: list[str], login: Login = OPEN) -> None:
        self._bootstrap = bootstrap
        self._command = command
        self._login = login
        self._root = Path(tempfile.mkdtemp(prefix="interop-streams-"))
        self._instances: dict[str, Program] = {}

    def op_start(self, instance: str, lines: str, counts: str) -> None:
        if instance not in self._instances:
            settings = {
                "bootstrap.servers": self._bootstrap,
                "application.id": f"word-count-{counts}",
                "processing.guarantee": "exactly_once_v2",
                "state.dir": str(self._root / instance),
                "statestore.cache.max.bytes": "0",
                "commit.interval.ms": "1000",
                "replication.factor": "3",
                "consumer.auto.offset.reset": "earliest",
                "consumer.session.timeout.ms": "6000",
                "consumer.heartbeat.interval.ms": "1500",
                **self._login.java(),
            }
            file = self._root / f"{instance}.properties"
            file.write_text(as_properties(settings))
            command = [*self._command, "WordCount", str(file), lines, counts]
            self._instances[instance] = Program(command, self._root / f"{instance}.out", self._login.environment())
        self._instances[instance].start()

    def op_check(self) -> None:
        for each in self._instances.values():
            each.check()

    def op_kill(self, instance: str) -> None:
        self._instances[instance].kill()

    def op_pause(self, instance: str) -> None:
        self._instances[instance].pause()

    def op_resume(self, instance: str) -> None:
        self._instances[instance].resume()

    def stop(self) -> None:
        for each in self._instances.values():
            each.kill()
        shutil.rmtree(self._root, ignore_errors=True)


def counts_are_exact(world: World) -> None:
    """Each instance is killed in the midst of a transaction, then each broker, then both instances; one is paused
    until it is fenced. A reader of committed data sees for every word the counts 1, 2, 3, ..., each once."""
    app = world.client
    lines, counts = world.topic(PARTITIONS), world.topic(PARTITIONS)
    where = {"lines": lines, "counts": counts}
    feeder = Feeder(world.bootstrap, lines, PARTITIONS)
    reader = Reader(world.bootstrap, counts, PARTITIONS)

    def moves_on() -> None:
        """Returns once so many more counts are committed as were sent until now."""
        wanted = feeder.words_sent

        def there() -> bool:
            app.call("check")
            return reader.read(wanted)

        eventually(there, MOVES_ON_S)

    def midst() -> None:
        eventually(lambda: transaction_is_open(world.bootstrap, counts, PARTITIONS), MOVES_ON_S)

    try:
        for instance in INSTANCES:
            app.call("start", instance=instance, **where)
        moves_on()
        for victims in (("a",), ("b",), INSTANCES):
            midst()
            for instance in victims:
                app.call("kill", instance=instance)
            for instance in victims:
                app.call("start", instance=instance, **where)
            moves_on()
        for node_id in (1, 2, 3) if world.nodes is not None else ():
            midst()
            with broker_down(world, node_id):
                moves_on()
        midst()
        app.call("pause", instance="a")
        try:
            moves_on()
        finally:
            app.call("resume", instance="a")
        moves_on()
    finally:
        feeder.stop()
    moves_on()
    judge(world, counts, reader, feeder.counts)


def judge(world: World, topic: str, reader: Reader, expected: Counter[str]) -> None:
    """What a committed reader saw, held against what was sent; and the uncommitted records beside it show that the
    kills met open transactions."""
    reader.rest()
    seen: dict[str, list[int]] = {}
    for message in reader.records:
        seen.setdefault(str(message.key(), "utf-8"), []).append(int(message.value()))
    same({word: len(each) for word, each in seen.items()}, dict(expected), "counts of words")
    for word, total in expected.items():
        same(seen[word], list(range(1, total + 1)), f"counts of {word}")
    everything = Reader(world.bootstrap, topic, PARTITIONS, committed=False)
    everything.rest()
    assert len(everything.records) > len(reader.records), "no kill met an open transaction"
    everything.close()
    reader.close()
