"""Groups, dead letters and their commands on real brokers; groups mixed with librdkafka (rows S54 to S68, S123)."""

from __future__ import annotations

import json
import threading
from contextlib import ExitStack

import confluent_kafka
import pytest
from click.testing import CliRunner, Result

from strandline.cli.main import main as program
from strandline.client import Admin, Consumer, ConsumerRecord, NewTopic, Producer, TopicPartition
from strandline.client.errors import UnknownTopic
from strandline.client.types import OffsetAndMetadata
from strandline.cluster.node.dev import DevCluster
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.tools.handling import handle
from strandline.tools.replay import GROUP as REPLAY_GROUP
from tests.client.conftest import MakeTopic, eventually


@pytest.fixture
def bootstrap(cluster: DevCluster) -> str:
    """Strandline's own."""
    return cluster.bootstrap


def fill(bootstrap: str, topic: str, count: int, partitions: int = 1) -> None:
    with Producer(bootstrap) as producer:
        for number in range(count):
            producer.send(topic, b"%d" % number, key=b"k", headers=[("h", b"1")], partition=number % partitions)


def run(bootstrap: str, *words: str, fails: int = 0) -> Result:
    result = CliRunner().invoke(program, [*words, "-b", bootstrap])
    assert result.exit_code == fails, result.output
    return result


class Reader:
    """A blocking consumer on a thread."""

    def __init__(self, bootstrap: str, group: str, topic: str, **settings: object) -> None:
        self.consumer = Consumer(bootstrap, group_id=group, auto_offset_reset="earliest", **settings)
        self.consumer.subscribe([topic])
        self.values: list[bytes] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        while not self._stop.is_set():
            self.values += [record.value or b"" for record in self.consumer.poll(0.2)]
        self.consumer.commit()
        self.consumer.close()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()


QUICK = {"session.timeout.ms": 6_000, "heartbeat.interval.ms": 500}


@pytest.mark.parametrize(
    "agreed",
    [
        *({"partition.assignment.strategy": name, **QUICK} for name in ("range", "roundrobin", "cooperative-sticky")),
        {"group.protocol": "consumer", "group.remote.assignor": "range"},
    ],
    ids=lambda agreed: next(iter(agreed.values())),
)
def test_a_group_shared_with_librdkafka(bootstrap: str, make_topic: MakeTopic, agreed: dict[str, object]) -> None:
    """Rows S56, S57: ours and librdkafka's share out by the same bytes, whoever leads, and have the same coordinator in
    the consumer protocol (KIP-848); every record is handled once."""
    topic = make_topic(4)
    group = f"mixed-{topic}"
    theirs = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest", **agreed}
    )
    values: list[bytes] = []
    with ExitStack() as stack:
        stack.callback(theirs.close)
        theirs.subscribe([topic])

        def turn() -> None:
            values.extend(one.value() for one in theirs.consume(50, 0.05) if one.error() is None)

        def shared(sizes: tuple[int, ...]) -> bool:
            turn()
            mine = [len(one.consumer.assignment()) for one in ours]
            return tuple(sorted([len(theirs.assignment()), *mine])) == sizes

        ours: list[Reader] = []
        eventually(lambda: shared((4,)), 20)
        for sizes in ((2, 2), (1, 1, 2)):
            ours.append(Reader(bootstrap, group, topic, **agreed))
            stack.callback(ours[-1].close)
            eventually(lambda sizes=sizes: shared(sizes), 60)  # type: ignore[misc]
        fill(bootstrap, topic, 100, 4)

        def handled() -> list[bytes]:
            turn()
            return values + [value for one in ours for value in one.values]

        eventually(lambda: len(handled()) >= 100, 20)
        assert sorted(handled(), key=int) == [b"%d" % number for number in range(100)]


def test_listeners_run_in_the_thread_that_polls_and_may_use_the_consumer(bootstrap: str, make_topic: MakeTopic) -> None:
    """Row S67: an application seeks in on_assigned to what its own database holds, and commits in on_revoked."""
    topic = make_topic(2)
    fill(bootstrap, topic, 20, 2)
    heard: list[tuple[str, int, int]] = []
    with Consumer(bootstrap, group_id=f"g-{topic}", enable_auto_commit=False) as consumer:

        def assigned(partitions: list[TopicPartition]) -> None:
            for item in partitions:
                consumer.seek(item, 7)
            heard.append(("assigned", len(partitions), threading.get_ident()))

        def revoked(partitions: list[TopicPartition]) -> None:
            consumer.commit({item: consumer.position(item) for item in partitions})
            heard.append(("revoked", len(partitions), threading.get_ident()))

        consumer.subscribe(topic, on_assigned=assigned, on_revoked=revoked)
        records: list[ConsumerRecord] = []
        while len(records) < 6:
            records += consumer.poll(5.0)
        assert {record.offset for record in records} == {7, 8, 9}
    me = threading.get_ident()
    assert heard == [("assigned", 2, me), ("revoked", 2, me)]
    with Admin(bootstrap) as admin:
        assert [one.offset for one in admin.list_group_offsets(f"g-{topic}").values()] == [10, 10]


def test_records_that_fail_die_and_are_brought_back_once(bootstrap: str, make_topic: MakeTopic) -> None:
    """A handler that fails n times: the record goes to <topic>.dead with cause and origin, the
    partition moves on; a replay brings it back once, also after an interruption."""
    topic = make_topic(2)
    fill(bootstrap, topic, 20, 2)
    tried: dict[bytes, int] = {}

    def handler(record: ConsumerRecord) -> None:
        value = record.value or b""
        tried[value] = tried.get(value, 0) + 1
        if value in (b"4", b"9") or (value == b"6" and tried[value] < 3):
            raise ValueError(f"no {value.decode()}")

    settings = {"group_id": f"g-{topic}", "auto_offset_reset": "earliest", "auto_commit_interval_ms": 100}
    with Consumer(bootstrap, **settings) as consumer:
        consumer.subscribe(topic)
        report = handle(consumer, handler, attempts=3, backoff_ms=20, idle_s=5)
    assert (report.handled, report.failures, report.dead_letters) == (18, 8, 2)
    assert {value: count for value, count in tried.items() if count > 1} == {b"4": 3, b"6": 3, b"9": 3}
    with Admin(bootstrap) as admin:
        assert [one.offset for one in admin.list_group_offsets(f"g-{topic}").values()] == [10, 10]
    letters = json.loads(run(bootstrap, "dead-letters", "list", topic, "-o", "json").output)
    facts = ("origin_partition", "origin_offset", "error", "message", "attempts")
    assert [tuple(one[name] for name in facts) for one in letters] == [
        (0, 2, "ValueError", "no 4", 3), (1, 4, "ValueError", "no 9", 3),
    ]  # fmt: skip
    assert "would replay 2 dead letters" in run(bootstrap, "dead-letters", "replay", topic, "--dry-run").output
    where = TopicPartition(f"{topic}.dead", 1)
    assert "replayed 2 dead letters" in run(bootstrap, "dead-letters", "replay", topic).output
    with Admin(bootstrap) as admin:  # as if the last commit had not come through
        note = json.dumps([[topic, 1, 10]])
        admin.alter_group_offsets(REPLAY_GROUP, {where: OffsetAndMetadata(0, note)})
    again = json.loads(run(bootstrap, "dead-letters", "replay", topic, "-o", "json").output)
    assert (again["sent"], again["already"]) == (0, 1)
    assert "no dead letters" in run(bootstrap, "dead-letters", "list", topic).output
    with Admin(bootstrap) as admin:  # as offsets.retention.minutes does, a week after the last replay
        admin.delete_groups([REPLAY_GROUP])
    assert "no dead letters" in run(bootstrap, "dead-letters", "list", topic).output
    assert "would replay 0 dead letters" in run(bootstrap, "dead-letters", "replay", topic, "--dry-run").output
    again = json.loads(run(bootstrap, "dead-letters", "replay", topic, "-o", "json").output)
    assert (again["sent"], again["already"]) == (0, 2)
    with Consumer(bootstrap, **settings) as consumer:
        consumer.subscribe(topic)
        back: list[ConsumerRecord] = []
        handle(consumer, back.append, idle_s=5)
    assert sorted(record.value or b"" for record in back) == [b"4", b"9"]
    assert all(record.key == b"k" and record.headers[0] == ("h", b"1") for record in back)
    with Admin(bootstrap) as admin:
        admin.delete_topics([f"{topic}.dead"])


def test_65_letters_of_topics_that_were_made_anew_are_replayed(bootstrap: str, make_topic: MakeTopic) -> None:
    """The topic of dead letters is another one, and so is the origin: what was replayed into the old ones, from equal
    offsets, counts for nothing."""
    topic = make_topic()

    def refuse(_record: ConsumerRecord) -> None:
        raise ValueError("no")

    for _ in range(2):
        fill(bootstrap, topic, 3)
        with Consumer(bootstrap, group_id=f"g-{topic}", auto_offset_reset="earliest") as consumer:
            consumer.assign([(topic, 0)])
            assert handle(consumer, refuse, attempts=1, idle_s=3).dead_letters == 3
        done = json.loads(run(bootstrap, "dead-letters", "replay", topic, "-o", "json").output)
        assert (done["sent"], done["already"]) == (3, 0)
        with Admin(bootstrap) as admin:
            admin.delete_topics([f"{topic}.dead", topic])

            def made() -> bool:
                try:
                    admin.create_topics([NewTopic(topic, 1, 3)])
                except KafkaError:
                    return False
                return True

            eventually(made)


def test_group_commands(bootstrap: str, make_topic: MakeTopic) -> None:
    """Rows S68, S123: lag in words, offsets reset in every way, refused in use; records below the commits deleted."""
    topic = make_topic(2)
    group = f"kitchen-{topic}"
    fill(bootstrap, topic, 20, 2)
    printed = run(bootstrap, "consume", topic, "--group", group, "--from-beginning", "--exit-at-end")
    assert sorted(printed.stdout.split()) == sorted(str(number) for number in range(20))
    assert group in run(bootstrap, "group", "list").output
    assert "caught up" in run(bootstrap, "group", "describe", group).output
    fill(bootstrap, topic, 6, 2)

    def reset(*words: str) -> list[int]:
        told = json.loads(run(bootstrap, "group", "reset-offsets", group, "-o", "json", *words).output)
        return [one["after"] for one in told["partitions"]]

    words = run(bootstrap, "group", "describe", group).output
    assert words.count("3 behind") == 2
    assert "6 behind in all" in words
    assert reset("--to-earliest", "--dry-run") == [0, 0]
    assert reset("--shift-by", "-4") == [6, 6]
    assert reset("--shift-by", "100", "--dry-run") == [13, 13]
    assert reset("--topic", f"{topic}:1", "--to-offset", "2") == [2]
    assert reset("--by-duration", "PT1H", "--dry-run") == [0, 0]
    assert reset("--to-datetime", "0s", "--dry-run") == [13, 13]
    trimmed = json.loads(run(bootstrap, "topic", "trim", topic, "--committed-by", group, "-y", "-o", "json").output)
    assert [one["log_start"] for one in trimmed["partitions"]] == [6, 2]
    assert reset("--to-earliest") == [6, 2]
    run(bootstrap, "topic", "trim", topic, "--everything", "-y")
    words = run(bootstrap, "group", "describe", group).output
    assert "7 records expired unread" in words
    assert "! 18 records expired unread: " in words
    (told,) = json.loads(run(bootstrap, "group", "describe", group, "-o", "json").stdout)
    assert told["expired_unread"] == 18
    assert all(part["expired_unread"] == max(part["start"] - part["committed"], 0) for part in told["partitions"])
    reader = Reader(bootstrap, group, topic, client_id="cook")
    try:
        eventually(lambda: len(reader.consumer.assignment()) == 2)
        for command in (("reset-offsets", group, "--to-latest"), ("delete", group, "--yes")):
            assert (
                "is in use (Stable; members: cook): stop its consumers first"
                in run(bootstrap, "group", *command, fails=1).output
            )
        [one] = json.loads(run(bootstrap, "group", "describe", group, "-o", "json").output)
        assert one["members"][0]["partitions"] == [[topic, 0], [topic, 1]]
    finally:
        reader.close()
    assert "2 committed offsets" in run(bootstrap, "group", "delete", group, "--dry-run").output
    told = json.loads(run(bootstrap, "group", "delete", group, "--yes", "-o", "json").output)
    assert told == {"deleted": [{"group": group, "committed_offsets": 2}], "dry_run": False}
    assert "there is no such group" in run(bootstrap, "group", "describe", group, fails=1).output


def test_a_group_of_the_newer_protocol_is_described(bootstrap: str, make_topic: MakeTopic) -> None:
    """KIP-848: librdkafka with group.protocol=consumer; the same command shows its members and their partitions."""
    topic = make_topic(2)
    group = f"new-{topic}"
    theirs = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap, "group.id": group, "group.protocol": "consumer", "client.id": "848",
            "auto.offset.reset": "earliest",
        }
    )  # fmt: skip
    try:
        theirs.subscribe([topic])

        def assigned() -> bool:
            theirs.poll(0.1)
            return len(theirs.assignment()) == 2

        eventually(assigned, 20)
        [one] = json.loads(run(bootstrap, "group", "describe", group, "-o", "json").output)
        assert (one["type"], one["members"][0]["client_id"]) == ("consumer", "848")
        assert one["members"][0]["partitions"] == [[topic, 0], [topic, 1]]
    finally:
        theirs.close()


def test_admin_of_groups_and_storage(bootstrap: str, make_topic: MakeTopic) -> None:
    """The rest of Admin: offsets by name, log directories, producers, deleted records."""
    topic = make_topic(1)
    fill(bootstrap, topic, 10)
    where = TopicPartition(topic, 0)
    with Admin(bootstrap) as admin:
        admin.alter_group_offsets("g", {where: 4})
        assert admin.list_group_offsets("g", [where]) == {where: OffsetAndMetadata(4)}
        assert admin.describe_groups(["g"])["g"].state == "Empty"
        admin.delete_group_offsets("g", [where])
        assert admin.list_group_offsets("g", [where]) == {}
        with pytest.raises(KafkaError) as refused:
            admin.delete_groups(["nobody"])
        assert refused.value.code is ErrorCode.GROUP_ID_NOT_FOUND
        assert admin.delete_records({where: 3}) == {where: 3}
        with pytest.raises(KafkaError) as refused:
            admin.delete_records({where: 99})
        assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
        dirs = admin.describe_log_dirs()
        assert sorted(dirs) == [1, 2, 3]
        assert all(where in dirs[node][0].replicas for node in dirs)
        stays, away = (*where, 1), (*where, 2)
        moves = admin.alter_replica_log_dirs({stays: dirs[1][0].path, away: "/nowhere"})
        assert moves[stays] is None
        assert moves[away] is not None
        assert moves[away].code is ErrorCode.LOG_DIR_NOT_FOUND
        [producer] = admin.describe_producers([where])[where]
        assert producer.last_sequence == 9
        with pytest.raises(UnknownTopic):
            admin.describe_producers([("nowhere", 0)])
