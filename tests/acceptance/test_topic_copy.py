"""Row S17: `strandline topic copy` and `copy_topic`. What is killed meanwhile is in test_topic_copy_under_faults.py."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest
from click.testing import CliRunner, Result

from strandline.cli.main import main
from strandline.client import Admin, ConfigResource, ConsumerRecord, Producer
from strandline.client.errors import UnknownTopic
from strandline.client.types import LATEST
from strandline.cluster.node.dev import DevCluster
from strandline.tools.copy import TopicCopy, copy_topic
from strandline.tools.copy.errors import (
    CopyChanged,
    CopyRefused,
    CopyTakenOver,
    ForeignRecords,
    RecordsDeleted,
)
from tests.acceptance.copies import STRANDLINE, assert_copied, by_key, check, essence, fill, make_source
from tests.acceptance.helpers import eventually, send_all, wait_gone
from tests.acceptance.topics import create, drain

SMALL_BATCHES = {"max.message.bytes": "8000"}
"""The copy's batches have a quarter of it: many are under way in a short test."""


def run(cluster: DevCluster, *words: str, expect: int = 0) -> Result:
    """One command of the program."""
    told = CliRunner().invoke(main, words, env={"STRANDLINE_BOOTSTRAP": cluster.bootstrap})
    assert told.exit_code == expect, (told.output, told.stderr, told.exception)
    return told


def raises_at(partition: int, offset: int) -> Callable[[ConsumerRecord], ConsumerRecord]:
    """A transform that changes nothing and breaks off there: a round is left half done."""

    def transform(record: ConsumerRecord) -> ConsumerRecord:
        if (record.partition, record.offset) == (partition, offset):
            raise InterruptedError
        return record

    return transform


def half_a_copy(cluster: DevCluster, source: str, target: str, count: int = 3000) -> int:
    """A copy that broke off in the midst of its first round; how many records it has written."""
    make_source(cluster.bootstrap, source, count)
    with Admin(cluster.bootstrap) as admin:
        [end] = admin.list_offsets({(source, 2): LATEST}).values()
    last = end.offset - 1
    with pytest.raises(InterruptedError) as broke:
        copy_topic(cluster.bootstrap, source, target, partitions=4, configs=SMALL_BATCHES, transform=raises_at(2, last))
    assert f"offset {last} of {source}-2" in str(broke.value.__notes__)
    return eventually(lambda: len(drain(cluster.bootstrap, target, 4)))


def test_s17_a_copy_has_every_record_once_and_each_key_in_order(cluster: DevCluster) -> None:
    """Row S17: counts, per-key order, keys, values, headers, times, nulls; the settings of the source, but for times
    that a broker would give; again, it copies what came since."""
    create(cluster.bootstrap, "orders", 3, configs={"retention.ms": "-1", "message.timestamp.type": "CreateTime"})
    fill(cluster.bootstrap, "orders", 4000)
    told = json.loads(run(cluster, "topic", "copy", "orders", "orders2", "--partitions", "12", "-o", "json").stdout)
    assert (told["records"], told["written"], told["already"], told["left_out"]) == (4000, 4000, 0, 0)
    assert sum(part["records"] for part in told["partitions"]) == 4000
    assert sum(told["target_ends"]) == 4000
    assert told["group"] == "strandline-copy.orders.orders2"
    check(cluster.bootstrap, "orders", "orders2", 12)
    with Admin(cluster.bootstrap) as admin:
        [entries] = admin.describe_configs([ConfigResource("topic", "orders2")]).values()
    assert {entry.name: entry.value for entry in entries if entry.source == "DYNAMIC_TOPIC_CONFIG"} == {
        "retention.ms": "-1"
    }
    fill(cluster.bootstrap, "orders", 500, first=4000)
    assert (
        "copied 500 records of orders to orders2 (12 partitions)"
        in run(cluster, "topic", "copy", "orders", "orders2").stdout
    )
    check(cluster.bootstrap, "orders", "orders2", 12)
    assert "copied 0 records" in run(cluster, "topic", "copy", "orders", "orders2").stdout
    assert "caught up" in run(cluster, "group", "describe", "strandline-copy.orders.orders2").stdout


def test_a_dry_run_tells_what_a_copy_would_do_and_changes_nothing(cluster: DevCluster) -> None:
    """cli.md: every command that changes something has --dry-run. The target that would be made, what would be read and
    what would be refused; before, between and behind runs."""
    create(cluster.bootstrap, "dry", 2, configs={"max.message.bytes": "5000000"})
    send_all(cluster, "dry", [b"%d" % number for number in range(10)], 1)
    words = ("topic", "copy", "dry", "dry2", "--partitions", "4", "--dry-run")
    told = run(cluster, *words).stdout
    assert "would create topic dry2: 4 partitions, settings: max.message.bytes=5000000" in told
    assert "would copy 10 offsets of dry to dry2 (4 partitions)" in told
    document = json.loads(run(cluster, *words, "-o", "json").stdout)
    assert (document["creates"], document["records"], document["dry_run"]) == (True, 10, True)
    with Admin(cluster.bootstrap) as admin:
        assert "dry2" not in admin.list_topics()
        assert admin.list_group_offsets("strandline-copy.dry.dry2") == {}
    assert "INVALID_REPLICATION_FACTOR" in run(cluster, *words, "--replication", "9", expect=1).stderr
    assert not any("dry2" in line for line in run(cluster, "group", "list").stdout.splitlines())
    run(cluster, *words[:-1])
    send_all(cluster, "dry", [b"new"], 0)
    told = run(cluster, *words).stdout
    assert "would create" not in told
    assert "would copy 1 offset of dry to dry2" in told
    assert "is there with 4 partitions, not 5" in run(cluster, *words[:5], "5", "--dry-run", expect=1).stderr
    assert "copied 1 record" in run(cluster, *words[:-1]).stdout


def test_times_that_the_broker_gave_become_the_records_own(cluster: DevCluster) -> None:
    """LogAppendTime in the source: the copy keeps those times; a target that would give new ones is refused."""
    create(cluster.bootstrap, "stamped-by-brokers", 1, configs={"message.timestamp.type": "LogAppendTime"})
    send_all(cluster, "stamped-by-brokers", [b"one", b"two"])
    copy_topic(cluster.bootstrap, "stamped-by-brokers", "stamped-by-brokers.copy", partitions=2)
    was, now = drain(cluster.bootstrap, "stamped-by-brokers", 1), drain(cluster.bootstrap, "stamped-by-brokers.copy", 2)
    assert sorted(map(essence, was)) == sorted(map(essence, now))
    create(cluster.bootstrap, "stamped-by-brokers.wrong", 1, configs={"message.timestamp.type": "LogAppendTime"})
    with pytest.raises(CopyRefused, match=r"message\.timestamp\.type=LogAppendTime, not CreateTime"):
        copy_topic(cluster.bootstrap, "stamped-by-brokers", "stamped-by-brokers.wrong")


def test_what_cannot_be_done_is_told(cluster: DevCluster) -> None:
    """One topic; unknown; another number of partitions; a target with records: each refused, nothing written. A source
    without records is a copy too."""
    create(cluster.bootstrap, "plain", 2)
    told = run(cluster, "topic", "copy", "plain", "plain", expect=1)
    assert "source and target are one topic" in told.stderr
    with pytest.raises(UnknownTopic):
        copy_topic(cluster.bootstrap, "plain.unknown", "plain.copy")
    told = run(cluster, "topic", "copy", "plain", "plain.copy", "--partitions", "5")
    assert "copied 0 records of plain to plain.copy (5 partitions)" in told.stdout
    told = run(cluster, "topic", "copy", "plain", "plain.copy", "--partitions", "6", expect=1)
    assert "is there with 5 partitions, not 6" in told.stderr
    with pytest.raises(CopyRefused, match="is there with 5 partitions, not 4"):
        copy_topic(cluster.bootstrap, "plain", "plain.copy", partitions=4, group="another")
    with pytest.raises(CopyRefused, match=r"retention\.ms=.*not 5"):
        copy_topic(cluster.bootstrap, "plain", "plain.copy", configs={"retention.ms": "5"}, group="another")
    send_all(cluster, "plain", [b"new"])
    create(cluster.bootstrap, "plain.used", 2)
    send_all(cluster, "plain.used", [b"there"], 1)
    with pytest.raises(CopyRefused, match="has had records"):
        copy_topic(cluster.bootstrap, "plain", "plain.used")
    assert [record.value for record in drain(cluster.bootstrap, "plain.used", 2)] == [b"there"]
    result = copy_topic(cluster.bootstrap, "plain", "plain.used", append=True)
    assert result.written == 1
    assert sorted(record.value for record in drain(cluster.bootstrap, "plain.used", 2)) == [b"new", b"there"]


def test_a_half_done_round_is_finished(cluster: DevCluster) -> None:
    """What is there is compared, and the rest written; a transform that makes other records is told."""
    there = half_a_copy(cluster, "half", "half.copy")
    assert 0 < there < 3000
    with pytest.raises(CopyChanged, match="another transform"):
        copy_topic(cluster.bootstrap, "half", "half.copy", transform=lambda record: record._replace(value=b"another"))
    result = copy_topic(cluster.bootstrap, "half", "half.copy")
    assert (result.records, result.already + result.written) == (3000, 3000)
    assert result.already >= there
    check(cluster.bootstrap, "half", "half.copy", 4)


def test_records_of_others_in_a_half_done_round(cluster: DevCluster) -> None:
    """Somebody else's record behind those of the copy: told with partition and offset, before anything is written."""
    half_a_copy(cluster, "shared", "shared.copy")
    [offset] = send_all(cluster, "shared.copy", [b"mine"], 3)
    before = len(drain(cluster.bootstrap, "shared.copy", 4))
    with pytest.raises(ForeignRecords, match=rf"shared\.copy-3: at offset {offset} ") as found:
        copy_topic(cluster.bootstrap, "shared", "shared.copy")
    assert found.value.offset == offset
    assert "strandline topic delete shared.copy" in str(found.value)
    assert sum(record.value == b"mine" for record in drain(cluster.bootstrap, "shared.copy", 4)) == 1
    assert len(drain(cluster.bootstrap, "shared.copy", 4)) >= before


def test_records_of_others_while_it_follows(cluster: DevCluster) -> None:
    """A copy that follows finds a foreign record when it writes next to that partition; Ctrl-C is how it else ends."""
    make_source(cluster.bootstrap, "followed", 100)
    copy = TopicCopy(cluster.bootstrap, "followed", "followed.copy", partitions=2, follow=True, settings={})
    failures: list[BaseException] = []

    def work() -> None:
        try:
            copy.run()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        eventually(lambda: copy.result().written == 100)
        fill(cluster.bootstrap, "followed", 60, first=100)
        eventually(lambda: copy.result().written == 160)
        check(cluster.bootstrap, "followed", "followed.copy", 2)
        ends = copy.result().target_ends
        for number in (0, 1):
            send_all(cluster, "followed.copy", [b"mine"], number)
        fill(cluster.bootstrap, "followed", 60, first=160)
    finally:
        thread.join(60)
    assert not thread.is_alive()
    [error] = failures
    assert isinstance(error, ForeignRecords)
    assert error.offset == ends[error.place.partition]


def test_deleted_records_are_told_and_accepted(cluster: DevCluster) -> None:
    """The source begins behind the copy's position: which offsets are missing; accepted, the others are copied."""
    make_source(cluster.bootstrap, "trimmed", 600)
    copy_topic(cluster.bootstrap, "trimmed", "trimmed.copy", partitions=4)
    before = drain(cluster.bootstrap, "trimmed", 3)
    with Admin(cluster.bootstrap) as admin:
        ends = admin.list_offsets({("trimmed", number): LATEST for number in range(3)})
        start = ends[sorted(ends)[1]].offset
        fill(cluster.bootstrap, "trimmed", 600, first=600)
        [last] = admin.list_offsets({("trimmed", 1): LATEST}).values()
        assert last.offset > start + 5
        admin.delete_records({("trimmed", 1): start + 5})
    told = run(cluster, "topic", "copy", "trimmed", "trimmed.copy", expect=1)
    assert f"trimmed-1: the records of offsets {start} to {start + 4} were deleted" in told.stderr
    told = run(cluster, "topic", "copy", "trimmed", "trimmed.copy", "--accept-deleted")
    assert "! the records of 5 offsets had been deleted" in told.stdout
    after = [record for record in drain(cluster.bootstrap, "trimmed", 3) if record not in before]
    assert_copied(before + after, drain(cluster.bootstrap, "trimmed.copy", 4), 4)


def test_records_deleted_from_a_half_done_round(cluster: DevCluster) -> None:
    """What the target has stays, what the source still has comes once."""
    there = half_a_copy(cluster, "worn", "worn.copy")
    before = drain(cluster.bootstrap, "worn", 3)
    with Admin(cluster.bootstrap) as admin:
        admin.delete_records({("worn", 0): 300, ("worn", 2): 40})
    with pytest.raises(RecordsDeleted, match="worn-0: the records of offsets 0 to 299 were deleted"):
        copy_topic(cluster.bootstrap, "worn", "worn.copy")
    written = drain(cluster.bootstrap, "worn.copy", 4)
    assert len(written) >= there
    result = copy_topic(cluster.bootstrap, "worn", "worn.copy", accept_deleted=True)
    assert result.deleted == 340
    left = drain(cluster.bootstrap, "worn", 3)
    copied = drain(cluster.bootstrap, "worn.copy", 4)
    found = set(map(essence, copied))
    assert len(copied) == len(found), "none is twice"
    assert found >= set(map(essence, left)) | set(map(essence, written))
    assert found <= set(map(essence, before))
    for key, records in by_key(copied).items():
        assert records == [record for record in by_key(before)[key] if record in found]


def test_filter_and_map(cluster: DevCluster) -> None:
    """A transform leaves records out and changes others; the key that it gives says where they go."""
    make_source(cluster.bootstrap, "mapped", 900)

    def transform(record: ConsumerRecord) -> ConsumerRecord | None:
        if record.value is None:
            return None
        return record._replace(key=record.value[:2], value=record.value.upper(), headers=(("from", record.key),))

    result = copy_topic(cluster.bootstrap, "mapped", "mapped.copy", partitions=5, transform=transform)
    expected = [changed for record in drain(cluster.bootstrap, "mapped", 3) if (changed := transform(record))]
    assert (result.records, result.written, result.left_out) == (900, len(expected), 900 - len(expected))
    copied = drain(cluster.bootstrap, "mapped.copy", 5)
    assert sorted(map(repr, map(essence, copied))) == sorted(map(repr, map(essence, expected)))
    with pytest.raises(TypeError, match="gave bytes: a ConsumerRecord is expected"):
        copy_topic(cluster.bootstrap, "mapped", "mapped.wrong", transform=lambda record: b"no record")  # type: ignore[arg-type,return-value]


def test_a_topic_that_was_made_anew_is_another_one(cluster: DevCluster) -> None:
    """Offsets of the notes mean records of the topic that was: told, whichever of the two it is."""
    for wrong in ("source", "target"):
        source, target = f"anew.{wrong}", f"anew.{wrong}.copy"
        make_source(cluster.bootstrap, source, 30)
        copy_topic(cluster.bootstrap, source, target)
        name = source if wrong == "source" else target
        with Admin(cluster.bootstrap) as admin:
            admin.delete_topics([name])
        wait_gone(cluster.bootstrap, name)
        create(cluster.bootstrap, name, 3)
        with pytest.raises(CopyRefused, match=r"(notes no round)|(is another one)"):
            copy_topic(cluster.bootstrap, source, target)


def interruptible(command: list[str]) -> subprocess.Popen[str]:
    """A process that hears Ctrl-C, also where the tests themselves run in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_copy_relieves_the_one_that_runs(cluster: DevCluster) -> None:
    """Two that follow: the second goes on, the first ends with an error that says so; each record is there once. Ctrl-C
    is how following ends: with what was done."""
    make_source(cluster.bootstrap, "twice", 1000)
    first = TopicCopy(cluster.bootstrap, "twice", "twice.copy", partitions=4, follow=True, settings={})
    failures: list[BaseException] = []

    def work() -> None:
        try:
            first.run()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    eventually(lambda: first.result().written == 1000)
    words = ["topic", "copy", "twice", "twice.copy", "--follow", "-o", "json", "--bootstrap", cluster.bootstrap]
    second = interruptible([sys.executable, "-m", STRANDLINE, *words])
    try:
        fill(cluster.bootstrap, "twice", 500, first=1000)
        thread.join(60)
        assert not thread.is_alive()
        [error] = failures
        assert isinstance(error, CopyTakenOver)
        fill(cluster.bootstrap, "twice", 200, first=1500)
        eventually(lambda: len(drain(cluster.bootstrap, "twice.copy", 4)) == 1700)
        second.send_signal(signal.SIGINT)
        told, _ = second.communicate(timeout=30)
    finally:
        second.kill()
        second.communicate()
    assert second.returncode == 0
    assert json.loads(told)["target"] == "twice.copy"
    check(cluster.bootstrap, "twice", "twice.copy", 4)


def test_large_records_and_many(cluster: DevCluster) -> None:
    """Records from nothing to nearly the largest that the topic takes: a batch is never larger than allowed."""
    create(cluster.bootstrap, "large", 2, configs={"max.message.bytes": "100000"})
    with Producer(cluster.bootstrap) as producer:
        for number in range(120):
            size = (0, 10, 30_000, 24_900, 99_000)[number % 5]
            producer.send("large", b"x" * size, key=b"%d" % (number % 3), headers=[("h", b"y" * (number % 900))])
    result = copy_topic(cluster.bootstrap, "large", "large.copy", partitions=1)
    assert result.written == 120
    check(cluster.bootstrap, "large", "large.copy", 1, of=2)
