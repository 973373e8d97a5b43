"""The commands against real brokers: what they print, what they refuse, how they end (rows S11, S14, S16; exit
codes)."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from tests.client.conftest import eventually

from strandline.cli.main import COMMANDS, main
from strandline.client import Admin, Producer, TopicPartition
from strandline.client.errors import UnknownTopic

Run = Callable[..., Result]
_numbers = itertools.count(1)


@pytest.fixture
def run(cluster: Any) -> Run:
    """Run one command against the cluster."""

    def call(*words: str, stdin: bytes | None = None, expect: int = 0) -> Result:
        told = CliRunner().invoke(main, words, input=stdin, env={"STRANDLINE_BOOTSTRAP": cluster.bootstrap})
        assert told.exit_code == expect, (told.output, told.stderr, told.exception)
        return told

    return call


@pytest.fixture
def topic(cluster: Any) -> Iterator[str]:
    """A name for a topic, deleted afterwards if it was made."""
    name = f"commands-{os.getpid()}-{next(_numbers)}"
    yield name
    with Admin(cluster.bootstrap) as admin, suppress(UnknownTopic):
        admin.delete_topics([name])


def test_a_topics_life(run: Run, topic: str) -> None:
    """Row S11: create, list, describe, alter, delete; each write first as a dry run that changes nothing."""
    dry = run("topic", "create", topic, "-p", "3", "--dry-run")
    assert dry.stdout.startswith(f"would create topic {topic}: 3 partitions, 3 replicas each")
    assert topic not in run("topic", "list").stdout
    made = run("topic", "create", topic, "-p", "3", "-c", "retention.ms=3600000")
    assert made.stdout == f"created topic {topic}: 3 partitions, 3 replicas each, min.insync.replicas 2\n"
    eventually(lambda: topic in run("topic", "list").stdout)
    assert "TOPIC_ALREADY_EXISTS" in run("topic", "create", topic, expect=1).stderr
    assert run("topic", "create", topic, "--if-not-exists").stdout == f"topic {topic} is there already\n"
    [line] = [line for line in run("topic", "list").stdout.splitlines() if topic in line]
    assert line.split() == [topic, "3", "3", "ok"]
    described = json.loads(run("topic", "describe", topic, "-o", "json").stdout)[0]
    assert described["configs"]["retention.ms"] == "3600000"
    assert [part["high_watermark"] for part in described["partitions"]] == [0, 0, 0]
    assert f"{topic}  (id {described['topic_id']})" in run("topic", "describe", topic).stdout
    grown = run("topic", "alter", topic, "-p", "5", "--delete-config", "retention.ms")
    assert f"topic {topic} is now at 5 partitions, 3 before" in grown.stdout
    assert "a key may map to another partition now" in grown.stderr
    eventually(lambda: len(json.loads(run("topic", "describe", topic, "-o", "json").stdout)[0]["partitions"]) == 5)
    assert "INVALID_PARTITIONS" in run("topic", "alter", topic, "-p", "4", expect=1).stderr
    longer = ("topic", "alter", topic, "-p", "6", "-c", "retention.ms=7200000", "--dry-run", "-o", "json")
    assert json.loads(run(*longer).stdout) == {
        "topic": topic,
        "dry_run": True,
        "partitions": {"before": 5, "after": 6},
        "configs": [{"name": "retention.ms", "operation": "set", "value": "7200000", "before": "604800000"}],
        "without_effect": {},
    }
    assert "would delete topic" in run("topic", "delete", topic, "--dry-run").stdout
    dry = json.loads(run("topic", "delete", topic, "--dry-run", "-o", "json").stdout)
    assert dry == {"deleted": [{"name": topic, "partitions": 5, "records": 0}], "dry_run": True}
    assert "nobody is there to ask; say --yes" in run("topic", "delete", topic, expect=2).stderr
    assert run("topic", "delete", topic, "--yes").stdout.startswith(f"deleted topic {topic}: 5 partitions")
    eventually(lambda: topic not in run("topic", "list").stdout)
    gone = run("topic", "describe", topic, expect=1)
    assert f"create it with: strandline topic create {topic} --partitions 3" in gone.stderr
    own = run("topic", "delete", "__share_group_state", "--internal", "--yes", expect=1)
    assert "no topic '__share_group_state'; the cluster makes this topic of its own" in own.stderr
    assert "topic create" not in own.stderr


def test_more_replicas_than_brokers(run: Run, topic: str) -> None:
    """Row S14: refused with Kafka's error, nothing made."""
    assert "INVALID_REPLICATION_FACTOR" in run("topic", "create", topic, "-r", "4", expect=1).stderr
    assert topic not in run("topic", "list").stdout


def test_lines_become_records_and_records_lines(run: Run, topic: str) -> None:
    run("topic", "create", topic, "-p", "2")
    assert "would send 2 records" in run("produce", topic, "--dry-run", stdin=b"a\nb\n").stdout
    sent = run("produce", topic, "-p", "1", stdin=b"first\nsecond\r\n\nlast")
    assert sent.stderr == f"4 records acknowledged in {topic} (partition 1: 0-3)\n"
    counted = run("produce", topic, "-p", "0", "-o", "json", stdin=b"one\ntwo\n")
    places = [{"partition": 0, "first_offset": 0, "last_offset": 1}]
    told = {"topic": topic, "acknowledged": 2, "failed": 0, "partitions": places, "dry_run": False}
    assert (json.loads(counted.stdout), counted.stderr) == (told, "")
    assert run("consume", topic, "-p", "1", "--from-beginning", "-e").stdout_bytes == b"first\nsecond\n\nlast\n"
    run("produce", topic, "-K", "=>", "-H", "by=me", "-q", stdin="schlüssel=>wert=>2\n".encode())
    lines = run("consume", topic, "--from-beginning", "-e", "-o", "json").stdout.splitlines()
    found = [record for record in map(json.loads, lines) if record["key"]]
    assert [(record["key"], record["value"], record["headers"]) for record in found] == [
        ("schlüssel", "wert=>2", [["by", "me"]])
    ]
    given = {"key": "k", "value": {"n": 1}, "headers": {"h": "v"}, "partition": 0, "timestamp_ms": 5_000}
    run("produce", topic, "--json", stdin=json.dumps(given).encode() + b"\n")
    back = json.loads(run("consume", topic, "-p", "0", "--since", "5000", "-e", "-o", "json", "-n", "1").stdout)
    assert back["value"] is not None
    at = [
        json.loads(line)
        for line in run("consume", topic, "-p", "0", "--offset", "0", "-e", "-o", "json").stdout.splitlines()
    ]
    assert {"partition": 0, "offset": at[-1]["offset"], "timestamp_ms": 5_000, "key": "k", "value": '{"n": 1}',
            "headers": [["h", "v"]]} in at  # fmt: skip
    assert run("consume", topic, "-p", "1", "--offset", "2", "-n", "1").stdout_bytes == b"\n"
    assert run("consume", topic, "-e").stdout_bytes == b""


@pytest.mark.parametrize(
    ("words", "stdin", "says"),
    [
        (("produce", "{t}", "-K", ":"), b"no separator\n", "line 1 has no key separator ':'"),
        (("produce", "{t}", "--json"), b"{\n", "line 1 is not JSON"),
        (
            ("produce", "{t}", "--json"),
            b'{"valu": 1}\n',
            "no other names than headers, key, partition, timestamp_ms, value",
        ),
        (("produce", "{t}", "-X", "compression.type=brotli"), b"", "one of none, gzip, snappy, lz4, zstd"),
        (("consume", "{t}", "--offset", "99", "-n", "1"), None, "offset 99 of {t}-0 is out of range: the log holds 0"),
        (("consume", "{t}", "--offset", "1", "--from-beginning"), None, "exclude one another"),
        (("consume", "{t}", "--since", "soon"), None, "is neither 15m"),
        (("topic", "alter", "{t}"), None, "nothing to alter"),
        (("topic", "create", "x", "-c", "retention"), None, "'retention' is not key=value"),
        (("config", "alter", "topic", "{t}", "-s", "retention.ms=soon"), None, "INVALID_CONFIG"),
        (("config", "describe", "topic"), None, "which topic?"),
        (("config", "describe", "broker", "99"), None, "there is no broker 99; the brokers are 1, 2, 3"),
    ],
)
def test_mistakes_get_a_sentence(run: Run, topic: str, words: tuple[str, ...], stdin: bytes | None, says: str) -> None:
    """The caller's mistakes: one sentence, exit code 1 or 2, never a traceback."""
    run("topic", "create", topic)

    def is_said() -> bool:
        errors = run(*(word.format(t=topic) for word in words), stdin=stdin, expect=_any_failure).stderr
        assert "Traceback" not in errors
        return says.format(t=topic) in errors

    eventually(is_said)  # at first the broker that is asked may not know the topic yet


class _AnyFailure(int):
    """Equal to 1 and 2."""

    def __eq__(self, other: object) -> bool:
        return other in (1, 2)

    __hash__ = int.__hash__


_any_failure = _AnyFailure()


def test_nobody_there(run: Run) -> None:
    """Exit code 3 at once, with the address, the reason and what to start."""
    told = run("topic", "list", "-b", "127.0.0.1:1", expect=3)
    assert "no broker answers at 127.0.0.1:1" in told.stderr
    assert "Connection refused" in told.stderr
    assert "strandline dev" in told.stderr


def test_the_cluster_and_its_quorum(run: Run, cluster: Any) -> None:
    """Who is there, who leads; the same for programs."""
    table = run("cluster", "describe").stdout
    assert all(cluster.client(node) in table for node in (1, 2, 3))
    told = json.loads(run("cluster", "describe", "-o", "json").stdout)
    assert [broker["node_id"] for broker in told["brokers"]] == [1, 2, 3]
    quorum = json.loads(run("quorum", "describe", "--output", "json").stdout)
    assert sorted(voter["node_id"] for voter in quorum["voters"]) == [1, 2, 3]
    table = run("quorum", "describe").stdout
    assert f"leader {quorum['leader_id']} in epoch {quorum['leader_epoch']}" in table


@pytest.mark.parametrize("group", [(), ("--group", "interrupted")], ids=["alone", "in a group"])
def test_ctrl_c_ends_consume_quietly(run: Run, cluster: Any, topic: str, group: tuple[str, ...]) -> None:
    """Exit code 130 and not a word (cli.md: 1 means refused); what was printed is out, and committed."""
    run("topic", "create", topic)
    run("produce", topic, stdin=b"one\ntwo\n")
    words = [sys.executable, "-m", "strandline.cli.main", "consume", topic, "--from-beginning", *group]
    with subprocess.Popen(
        [*words, "-b", cluster.bootstrap], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert [process.stdout.readline() for _ in range(2)] == ["one\n", "two\n"]
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert (process.stdout.read(), process.stderr.read()) == ("", "")
    if group:
        with Admin(cluster.bootstrap) as admin:
            assert admin.list_group_offsets("interrupted")[TopicPartition(topic, 0)].offset == 2


def completed(*words: str, bootstrap: str) -> list[str]:
    """What bash is offered for the last of the words."""
    environment = {
        **os.environ,
        "_STRANDLINE_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(["strandline", *words]),
        "COMP_CWORD": str(len(words)),
        "STRANDLINE_BOOTSTRAP": bootstrap,
    }
    program = [sys.executable, "-c", "from strandline.cli.main import main; main(prog_name='strandline')"]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == ""
    return [line.removeprefix("plain,") for line in done.stdout.splitlines() if line]


def test_topics_and_groups_are_completed(run: Run, cluster: Any, topic: str) -> None:
    """TAB asks the cluster for names, as far as it can; without one it offers nothing, and says nothing."""
    run("topic", "create", topic)
    run("produce", topic, stdin=b"x\n")
    run("consume", topic, "--group", f"{topic}-group", "--from-beginning", "-n", "1")
    where = cluster.bootstrap
    assert completed("topic", "describe", topic[:-1], bootstrap=where).count(topic) == 1
    assert topic not in completed("topic", "describe", topic, "", bootstrap=where)
    assert completed("consume", "-b", where, topic, bootstrap="127.0.0.1:1") == [topic]
    assert completed("consume", topic, "--group", f"{topic}-", bootstrap=where) == [f"{topic}-group"]
    assert completed("group", "describe", f"{topic}-g", bootstrap=where) == [f"{topic}-group"]
    assert completed("config", "describe", "topic", topic, bootstrap=where) == [topic]
    assert completed("config", "describe", "broker", "", bootstrap=where) == ["1", "2", "3"]
    assert completed("topic", "describe", "", bootstrap="127.0.0.1:1") == []


def test_settings_are_changed_and_put_back(run: Run, topic: str) -> None:
    run("topic", "create", topic)
    dry = run("config", "alter", "topic", topic, "-s", "retention.ms=7200000", "--dry-run").stdout
    assert dry == "retention.ms would be 7200000 (was 604800000)\n"
    told = run("config", "alter", "topic", topic, "-s", "retention.ms=7200000", "-o", "json").stdout
    change = {"name": "retention.ms", "operation": "set", "value": "7200000", "before": "604800000"}
    assert json.loads(told) == {"topic": topic, "dry_run": False, "configs": [change], "without_effect": {}}
    eventually(lambda: "7200000" in run("config", "describe", "topic", topic, "-o", "json").stdout)
    assert "is now at its default (was 7200000)" in run("config", "alter", "topic", topic, "-d", "retention.ms").stdout
    eventually(lambda: "604800000" in run("config", "describe", "topic", topic, "--all").stdout)
    default = ("config", "alter", "broker", "-s", "log.roll.ms=7200000")
    assert run(*default, "--dry-run").stdout == "log.roll.ms would be 7200000 (was not set)\n"
    assert run(*default).stdout == "log.roll.ms is now 7200000 (was not set)\n"
    back = ("config", "alter", "broker", "-d", "log.roll.ms")
    eventually(lambda: "(was 7200000)" in run(*back, "--dry-run").stdout)
    assert run(*back).stdout == "log.roll.ms is now at its default (was 7200000)\n"
    shown = run("config", "describe", "broker", "1", "--all").stdout
    assert "node.id" in shown
    words = " ".join(shown.split())
    assert "never changed" in words  # of node.id: told whole, not its first eighty letters


def commands(
    group: click.Group, names: Iterable[str], path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name in names:
        command = group.get_command(click.Context(group), name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, command.commands, (*path, name))
        else:
            yield (*path, name), command


@pytest.mark.parametrize(("path", "command"), list(commands(main, COMMANDS)), ids=lambda item: str(item)[:30])
def test_help_teaches(path: tuple[str, ...], command: click.Command) -> None:
    """Every command shows examples of itself; every option says what it does."""
    text = CliRunner().invoke(main, [*path, "--help"]).output
    assert f"strandline {' '.join(path)}" in text
    silent = [option.name for option in command.params if isinstance(option, click.Option) and not option.help]
    assert not silent


def test_group_list_says_how_far_each_group_is(run: Run, cluster: Any, topic: str) -> None:
    """State, members and lag; what retention took unread, and a group whose topic is gone, are no number."""
    run("topic", "create", topic, "-p", "2")
    run("produce", topic, stdin=b"\n".join(b"%d" % n for n in range(10)))
    one, other = f"{topic}-one", f"{topic}-other"
    with Admin(cluster.bootstrap) as admin:
        ends = admin.list_offsets({TopicPartition(topic, number): -1 for number in (0, 1)})
        behind = {place: max(found.offset - 1, 0) for place, found in ends.items()}
        admin.alter_group_offsets(one, behind)
        admin.alter_group_offsets(other, dict.fromkeys(ends, 0))
        lag = sum(1 for found in ends.values() if found.offset)

        def listed() -> dict[str, Any]:
            told = json.loads(run("group", "list", "-o", "json").stdout)
            return {group["group"]: group for group in told if group["group"].startswith(topic)}

        assert {(name, found["lag"], found["members"], found["state"]) for name, found in listed().items()} == {
            (one, lag, 0, "Empty"),
            (other, 10, 0, "Empty"),
        }
        [line] = [line for line in run("group", "list").stdout.splitlines() if f"{other} " in line]
        assert line.split() == [other, "Empty", "0", "10", "classic"]
        admin.delete_records({place: found.offset for place, found in ends.items()})
        eventually(lambda: listed()[other]["expired_unread"] == 10)
        [line] = [line for line in run("group", "list").stdout.splitlines() if f"{other} " in line]
        assert "! 10 behind in all, 10 records expired unread" in line
        admin.delete_groups([one, other])
        assert listed() == {}
    refused = run("topic", "delete", "__consumer_offsets", topic, "--yes", expect=2).stderr
    assert "nothing was deleted: __consumer_offsets is of the cluster itself, and where every group stands" in refused
    wanted = run("topic", "delete", "__consumer_offsets", "--internal", "--dry-run").stdout
    assert wanted.startswith("would delete topic __consumer_offsets: ")


@pytest.mark.parametrize("words", [("add", "4"), ("remove", "3"), ("replace", "3", "4")], ids=lambda words: words[0])
def test_controllers_that_are_configured_stay(run: Run, words: tuple[str, ...]) -> None:
    """At kraft.version 0 nothing is waited for, and a dry run promises nothing."""
    for more in ((), ("--dry-run",)):
        refused = run("quorum", *words, *more, expect=2).stderr
        assert "`strandline upgrade finalize kraft.version=1` lets them come and go" in refused


def test_who_produces(run: Run, cluster: Any, topic: str) -> None:
    """Each leader's producers, the latest first; those without an id are not remembered."""
    run("topic", "create", topic, "-p", "2", "-c", "retention.ms=-1")
    assert run("topic", "producers", topic).stdout == f"no leader of {topic} remembers a producer\n"
    with Producer(cluster.bootstrap, enable_idempotence=False) as producer:
        producer.send(topic, b"v", partition=0).result()
    assert json.loads(run("topic", "producers", topic, "-o", "json").stdout) == []
    for at_ms in (1_000_000, 2_000_000, 1_500_000):
        with Producer(cluster.bootstrap) as producer:
            producer.send(topic, b"v", partition=1, timestamp_ms=at_ms).result()
            producer.send(topic, b"v", partition=1, timestamp_ms=at_ms).result()
    found = json.loads(run("topic", "producers", topic, "-o", "json").stdout)
    assert [(one["partition"], one["last_sequence"], one["last_timestamp_ms"]) for one in found] == [
        (1, 1, 2_000_000),
        (1, 1, 1_500_000),
        (1, 1, 1_000_000),
    ]
    assert len({one["producer_id"] for one in found}) == 3
    first = run("topic", "producers", topic, "-p", "1").stdout.splitlines()
    assert "1970-01-01 00:33:20" in first[3]
    assert "has partitions 0 to 1, not 2" in run("topic", "producers", topic, "-p", "2", expect=2).stderr


def test_consume_prints_what_fits(run: Run, cluster: Any, topic: str) -> None:
    """By key, value and headers, as text and as pattern; what is asked for together must fit together. The records are
    of 1970: retention would take them while the test looks at them."""
    run("topic", "create", topic, "-p", "1", "-c", "retention.ms=-1")
    odd = b"\xff\xfe"
    sent: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]] = [
        (b"user-1", b'{"total": 10}', [("tenant", b"acme"), ("trace", b"1")]),
        (b"user-2", b'{"total": 2000}', [("tenant", b"acme")]),
        (b"user-1", None, []),
        (None, b"no key", [("tenant", None)]),
        (odd, odd, [("tenant", odd)]),
        (b"", b"", [("tenant", b"a=b"), ("tenant", b"zenith")]),
    ]
    with Producer(cluster.bootstrap) as producer:
        for key, value, headers in sent:
            producer.send(topic, value, key=key, headers=headers, timestamp_ms=1_000 * (1 + len(headers)))
    everything = ("consume", topic, "--from-beginning", "-e", "-o", "json")

    def offsets(*words: str) -> list[int]:
        return [json.loads(line)["offset"] for line in run(*everything, *words).stdout.splitlines()]

    assert offsets("--key", "user-1") == [0, 2]
    assert offsets("--key", "user-1", "--key", "user-2") == [0, 1, 2]
    assert offsets("--key", "") == [5], "which is not: no key"
    assert offsets("--key", "user") == []
    assert offsets("--key-regex", "^user-[2-9]$", "--key", "user-1") == [0, 1, 2]
    assert offsets("--key-regex", "") == [0, 1, 2, 4, 5], "whatever has a key"
    assert offsets("--value", "no key") == [3]
    assert offsets("--value-regex", '"total": [0-9]{4}') == [1]
    assert offsets("--null-value") == [2]
    assert offsets("--header", "tenant") == [0, 1, 3, 4, 5]
    assert offsets("--header", "tenant=acme") == [0, 1]
    assert offsets("--header", "tenant=acme", "--header", "trace=1") == [0]
    assert offsets("--header", "tenant=a=b") == [5]
    assert offsets("--header-regex", "tenant=^(ac|z)") == [0, 1, 5]
    assert offsets("--header", "tenant=acme", "--key", "user-2") == [1]
    assert offsets("--key", "user-1", "-n", "1") == [0]
    told = run("consume", topic, "--from-beginning", "-e", "--key", "user-1")
    assert told.stderr == "2 records of 6 up to the end\n"
    assert "no regular expression" in run(*everything, "--value-regex", "(", expect=2).stderr
    assert "not NAME=REGEX" in run(*everything, "--header-regex", "tenant", expect=2).stderr


def test_consume_stops_at_a_time(run: Run, cluster: Any, topic: str) -> None:
    run("topic", "create", topic, "-p", "1", "-c", "retention.ms=-1")
    with Producer(cluster.bootstrap) as producer:
        for second in (1, 2, 3, 4):
            producer.send(topic, b"%d" % second, timestamp_ms=second * 1_000)
    told = run("consume", topic, "--since", "2000", "--until", "4000")
    assert (told.stdout, told.stderr) == ("2\n3\n", "2 records up to that time\n")
    assert run("consume", topic, "--from-beginning", "--until", "9000").stdout == "1\n2\n3\n4\n", "the end comes first"
    assert "needs a begin" in run("consume", topic, "--until", "9000", expect=2).stderr


def test_what_a_member_reads_and_does_not_print_is_committed(run: Run, cluster: Any, topic: str) -> None:
    """And what it has not looked at is not: behind the last record that is asked for the group goes on."""
    run("topic", "create", topic, "-p", "1")
    with Producer(cluster.bootstrap) as producer:
        for number in range(10):
            producer.send(topic, b"%d" % number, key=b"even" if number % 2 == 0 else b"odd")
    group = ("consume", topic, "--group", f"{topic}-filter", "--from-beginning", "--key", "odd")
    told = run(*group, "-n", "2")
    assert (told.stdout, told.stderr) == ("1\n3\n", f"2 records of 4, committed for group {topic}-filter\n")
    assert run(*group, "-e").stdout == "5\n7\n9\n"
    with Admin(cluster.bootstrap) as admin:
        assert admin.list_group_offsets(f"{topic}-filter")[TopicPartition(topic, 0)].offset == 10


def test_metadata_of_a_running_cluster_and_of_its_nodes_directories(run: Run, cluster: Any, topic: str) -> None:
    """Row S83: brokers tell the present, the directory of a running node the past; and the two agree."""
    run("topic", "create", topic, "-p", "2", "-c", "retention.ms=86400000")
    told = json.loads(run("metadata", "dump", "--output", "json").stdout)
    [mine] = [one for one in told["topics"] if one["name"] == topic]
    assert mine["configs"] == {"retention.ms": "86400000"}
    assert {one["node_id"] for one in told["voters"]} == set(cluster.broker_ids)
    assert topic in run("metadata", "dump").stdout
    for node in cluster.broker_ids:
        directory = str(cluster.data_dir(node))
        eventually(lambda where=directory: topic in run("metadata", "dump", where).stdout)
        dumped = json.loads(run("metadata", "dump", directory, "--output", "json").stdout)
        [same] = [one for one in dumped["topics"] if one["name"] == topic]
        assert [one["replicas"] for one in same["partitions"]] == [one["replicas"] for one in mine["partitions"]]
        history = json.loads(run("metadata", "history", directory, "--topic", topic, "--output", "json").stdout)
        assert [one["kind"] for one in history["records"]][:2] == ["TopicRecord", "ConfigRecord"]
        assert run("metadata", "check", directory).stdout == "Nothing found that is wrong.\n"
