"""Limits hold while no broker answers: every public call of the clients, beside nodes that are stopped, and gone.

A stopped node's kernel accepts connections, and nothing answers on them; of a node that is gone the port refuses. Each
call is tried by a client that has met nobody yet, and by one that was at work when the nodes went. A call that is not
listed here fails `test_every_public_call_is_listed`.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import pkgutil
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from threading import Event, Thread
from typing import Any
from uuid import UUID

import strandline.client
import strandline.tools
from strandline.client import Admin, Consumer, NewTopic, Producer, aio
from strandline.client.batch_sender import BatchSender
from strandline.client.errors import ClientTimeout
from strandline.client.range_reader import AsyncRangeReader, RangeReader
from strandline.client.types import ConfigChange, ConfigResource, ScramChange
from strandline.cluster.node.dev import DevCluster
from strandline.log.batch import RecordBatchBuilder
from strandline.proto.acls import AclBinding, AclFilter, Operation, PatternType, Permission, ResourceKind
from strandline.proto.errors import StrandlineError
from strandline.proto.ids import TopicPartition as Place
from strandline.proto.quotas import QuotaEntity
from strandline.tools.copy import TopicCopy

LIMIT_S = 1.0
"""Of every call, whichever setting or argument says it. What a call is made of waits for ten seconds and more."""
SLACK_S = 4.0
"""A machine that is busy may take so much longer; less than any limit that is not to count here."""
ENDLESS_S = 20.0
"""How long a call may take before the test gives it up."""

TOPIC = "limits"
P0 = Place(TOPIC, 0)
MANY = [f"nobody-{number}" for number in range(8)]
"""Names, groups and brokers: a call that asks for one after the other has one limit all the same."""

COMMON: dict[str, Any] = {"default_api_timeout_ms": 1_000 * LIMIT_S}
PRODUCER: dict[str, Any] = {
    "max_block_ms": 1_000 * LIMIT_S, "request_timeout_ms": 500, "delivery_timeout_ms": 1_000 * LIMIT_S, "linger_ms": 0,
}  # fmt: skip

Call = Callable[[Any], Any]


def _acl(name: str) -> AclBinding:
    return AclBinding(ResourceKind.TOPIC, name, PatternType.LITERAL, "User:u", "*", Operation.READ, Permission.ALLOW)


def _batch() -> bytearray:
    builder = RecordBatchBuilder()
    builder.append(1, None, b"x", ())
    return builder.build()


def _without_group(client: Any) -> Any:
    """A consumer for `send_offsets` of a producer of the same kind."""
    return (aio.Consumer if isinstance(client, aio.Producer) else Consumer)(["127.0.0.1:1"])


async def _first(iterator: AsyncIterator[Any]) -> Any:
    try:
        return await anext(iterator)
    finally:
        await iterator.aclose()  # type: ignore[attr-defined]


BROKERS = [ConfigResource("broker", str(number)) for number in range(1, 9)]

ADMIN: dict[str, Call] = {
    "create_topics": lambda c: c.create_topics([NewTopic(name, 1, 1) for name in MANY]),
    "delete_topics": lambda c: c.delete_topics(MANY),
    "create_partitions": lambda c: c.create_partitions(dict.fromkeys(MANY, 3)),
    "elect_leaders": lambda c: c.elect_leaders(None, unclean=False),
    "alter_partition_reassignments": lambda c: c.alter_partition_reassignments({("t", 0): [1]}),
    "list_partition_reassignments": lambda c: c.list_partition_reassignments(),
    "list_topics": lambda c: c.list_topics(),
    "describe_topics": lambda c: c.describe_topics(MANY),
    "describe_cluster": lambda c: c.describe_cluster(),
    "describe_quorum": lambda c: c.describe_quorum(),
    "describe_features": lambda c: c.describe_features(),
    "update_features": lambda c: c.update_features({"metadata.version": 2}, dry_run=True),
    "unregister_broker": lambda c: c.unregister_broker(99),
    "remove_voter": lambda c: c.remove_voter(9, None),
    "add_voter": lambda c: c.add_voter(9, UUID(int=9)),
    "list_offsets": lambda c: c.list_offsets(dict.fromkeys([P0, *((name, 0) for name in MANY)], -1)),
    "epoch_ends": lambda c: c.epoch_ends(dict.fromkeys([P0, *((name, 0) for name in MANY)], 1)),
    "describe_configs": lambda c: c.describe_configs(BROKERS),
    "alter_configs": lambda c: c.alter_configs({key: [ConfigChange("log.retention.ms", "1")] for key in BROKERS}),
    "delete_records": lambda c: c.delete_records(dict.fromkeys([P0, *((name, 0) for name in MANY)], 1)),
    "describe_log_dirs": lambda c: c.describe_log_dirs(range(1, 9)),
    "alter_replica_log_dirs": lambda c: c.alter_replica_log_dirs({(TOPIC, 0, node): "/d" for node in range(1, 9)}),
    "describe_producers": lambda c: c.describe_producers([P0, *((name, 0) for name in MANY)]),
    "list_groups": lambda c: c.list_groups(),
    "describe_groups": lambda c: c.describe_groups(MANY),
    "delete_groups": lambda c: c.delete_groups(MANY),
    "list_group_offsets": lambda c: c.list_group_offsets("nobody"),
    "alter_group_offsets": lambda c: c.alter_group_offsets("nobody", {P0: 1}),
    "delete_group_offsets": lambda c: c.delete_group_offsets("nobody", [P0]),
    "list_transactions": lambda c: c.list_transactions(states=["Ongoing"], longer_than_ms=1),
    "describe_transactions": lambda c: c.describe_transactions(MANY),
    "fence_producers": lambda c: c.fence_producers(MANY),
    "abort_transaction": lambda c: c.abort_transaction(P0, producer_id=1, producer_epoch=0),
    "describe_scram_credentials": lambda c: c.describe_scram_credentials(),
    "alter_scram_credentials": lambda c: c.alter_scram_credentials({"u": [ScramChange("SCRAM-SHA-256", "p", 4096)]}),
    "describe_acls": lambda c: c.describe_acls(),
    "create_acls": lambda c: c.create_acls([_acl(name) for name in MANY]),
    "delete_acls": lambda c: c.delete_acls([AclFilter(name=name) for name in MANY]),
    "describe_client_quotas": lambda c: c.describe_client_quotas(),
    "alter_client_quotas": lambda c: c.alter_client_quotas({QuotaEntity(client_id="c"): {"producer_byte_rate": 1e6}}),
    "close": lambda c: c.close(),
}

PRODUCERS: dict[str, Call] = {
    "send": lambda c: c.send(TOPIC, b"x"),
    "flush": lambda c: c.flush(LIMIT_S),
    "partitions_for": lambda c: c.partitions_for("nobody"),
    "init_transactions": lambda c: c.init_transactions(),
    "begin_transaction": lambda c: c.begin_transaction(),
    "commit_transaction": lambda c: c.commit_transaction(),
    "abort_transaction": lambda c: c.abort_transaction(),
    "transaction": lambda c: c.transaction(),
    "transaction_state": lambda c: c.transaction_state,
    "send_offsets": lambda c: c.send_offsets(_without_group(c)),
    "send_offsets_to_transaction": lambda c: c.send_offsets_to_transaction({P0: 1}, "nobody"),
    "close": lambda c: c.close(LIMIT_S),
}

READING: dict[str, Call] = {
    "poll": lambda c: c.poll(LIMIT_S),
    "poll_columns": lambda c: c.poll_columns(LIMIT_S),
    "next_record": lambda c: c.next_record(LIMIT_S),
    "position": lambda c: c.position(P0),
    "commit": lambda c: c.commit(),
    "committed": lambda c: c.committed([P0]),
    "lag": lambda c: c.lag([P0]),
    "beginning_offsets": lambda c: c.beginning_offsets([P0]),
    "end_offsets": lambda c: c.end_offsets([P0]),
    "offsets_for_times": lambda c: c.offsets_for_times({P0: 1}),
    "partitions_for": lambda c: c.partitions_for("nobody"),
    "unsubscribe": lambda c: c.unsubscribe(),
    "close": lambda c: c.close(LIMIT_S),
}
"""Of a consumer, what waits."""

AT_ONCE: dict[str, Call] = {
    "subscribe": lambda c: c.subscribe("others"),
    "subscription": lambda c: c.subscription(),
    "assign": lambda c: c.assign([P0, (TOPIC, 1)]),
    "assignment": lambda c: c.assignment(),
    "seek": lambda c: c.seek(P0, 1),
    "seek_to_beginning": lambda c: c.seek_to_beginning(),
    "seek_to_end": lambda c: c.seek_to_end(),
    "seek_to_timestamp": lambda c: c.seek_to_timestamp({P0: 1}),
    "pause": lambda c: c.pause(P0),
    "resume": lambda c: c.resume(P0),
    "paused": lambda c: c.paused(),
    "take_back": lambda c: c.take_back(None),
    "deserialized": lambda c: None,
    "stop": lambda c: c.stop(),
    "stopped": lambda c: c.stopped,
    "finish_run": lambda c: c.finish_run(),
    "commit_async": lambda c: c.commit_async({P0: 1}),
    "group_metadata": lambda c: c.group_metadata(),
    "state": lambda c: c.state,
    "fetch_requests_sent": lambda c: c.fetch_requests_sent,
}

OF_AIO: dict[type, dict[str, Call]] = {
    aio.Admin: ADMIN,
    aio.Producer: PRODUCERS | {"send_and_wait": lambda c: c.send_and_wait(TOPIC, b"x")},
    aio.Consumer: READING
    | AT_ONCE
    | {
        "next_polled": lambda c: c.next_polled(),
        "group_id": lambda c: c.group_id,
        "topic_id": lambda c: c.topic_id(P0),
        "put_back": lambda c: c.put_back([]),
        "start_anew": lambda c: c.start_anew(),
        "wake_poll": lambda c: c.wake_poll(),
    },
    AsyncRangeReader: {
        "expect": lambda c: c.expect(TOPIC, None),
        "answers": lambda c: _first(c.answers(P0, 0, 5)),
        "close": lambda c: c.close(),
    },
    BatchSender: {
        "know": lambda c: c.know("nobody"),
        "producer_id": lambda c: c.producer_id(),
        "send": lambda c: c.send(P0, _batch()),
        "flush": lambda c: c.flush(),
    },
}
OF_BLOCKING: dict[type, dict[str, Call]] = {
    Admin: ADMIN,
    Producer: PRODUCERS | {"producer_id": lambda c: c.producer_id()},
    Consumer: READING | AT_ONCE,
    RangeReader: {
        "expect": lambda c: c.expect(TOPIC, None),
        "read_batches": lambda c: list(c.read_batches(TOPIC, 0, 0, 5)),
        "read_records": lambda c: list(c.read_records(TOPIC, 0, 0, 5)),
        "read_columns": lambda c: list(c.read_columns(TOPIC, 0, 0, 5, max_rows=9, max_bytes=99, with_headers=False)),
        "close": lambda c: c.close(),
    },
    TopicCopy: {"run": lambda c: c.run(), "preview": lambda c: c.preview(), "result": lambda c: c.result()},
}

WITHOUT = {
    "session", "inner", "config", "call", "wait", "listen_through", "take_over", "take_up", "give_up",
    "put_parts_back", "put_one_back", "handed_out", "committed_with_transaction",
    "prepare_transaction",
}  # fmt: skip
"""Names that programs do not call: what a client is made of, and what its own parts call."""
OTHERS = {"Session", "Network", "Engine", "Lease", "DeadLetterBox"}
"""What takes an address and is no client: parts of those here, and what is written with them."""


def test_every_public_call_is_listed() -> None:
    for cls, calls in (OF_AIO | OF_BLOCKING).items():
        public = {name for name in dir(cls) if not name.startswith("_")} - WITHOUT
        assert public == calls.keys(), f"{cls.__module__}.{cls.__qualname__}"
    found = set()
    for package in (strandline.client, strandline.tools):
        for entry in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            for item in vars(import_module(entry.name)).values():
                if inspect.isclass(item) and item.__module__ == entry.name and not item.__name__.startswith("_"):
                    code = getattr(item.__init__, "__code__", None)
                    if code is not None and "bootstrap" in code.co_varnames[: code.co_argcount]:
                        found.add(item)
    whole = {item for item in found if not any(other is not item and issubclass(other, item) for other in found)}
    assert {item for item in whole if item.__name__ not in OTHERS} == (OF_AIO | OF_BLOCKING).keys()


# -- beside nodes that do not answer -----------------------------------------------------------------------------------


class ServedTime:
    """Time in which this process ran: as long as a machine does not let any of its threads run, it stands still.

    A call that holds the loop of its client is not hidden by it: other threads run meanwhile.
    """

    STEP_S = 0.02
    GAP_S = 0.2
    """Between two looks no more than this counts."""

    def __init__(self) -> None:
        self._s = 0.0
        self._over = Event()
        self._thread = Thread(target=self._count, daemon=True)

    def __enter__(self) -> ServedTime:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _count(self) -> None:
        seen_s = time.monotonic()
        while not self._over.wait(self.STEP_S):
            now_s = time.monotonic()
            self._s += min(now_s - seen_s, self.GAP_S)
            seen_s = now_s

    def now(self) -> float:
        """Seconds since the start, as of the last look."""
        return self._s


class Tried:
    """A client and its calls, made at once; then its end."""

    def __init__(self, title: str, client: Any, calls: dict[str, Call]) -> None:
        self.count = len(calls)
        self.title = f"{title} {type(client).__module__}.{type(client).__name__}"
        self._client = client
        self._calls = calls

    async def run(self, pool: ThreadPoolExecutor, served: ServedTime) -> dict[str, str]:
        """What took longer than it may."""
        self._served = served
        overran: dict[str, str] = {}
        await asyncio.gather(*(self._one(pool, overran, *item) for item in self._calls.items()))
        ending = (
            _END if isinstance(self._client, BatchSender) else (OF_AIO | OF_BLOCKING)[type(self._client)].get("close")
        )
        if ending is not None:
            await self._one(pool, overran, "end", ending)
        return overran

    async def _one(self, pool: ThreadPoolExecutor, overran: dict[str, str], name: str, call: Call) -> None:
        since_s, outcome = self._served.now(), "it returned"
        try:
            async with asyncio.timeout(ENDLESS_S):
                await made(pool, self._client, call)
        except (StrandlineError, TimeoutError) as error:
            outcome = repr(error)
        took_s = self._served.now() - since_s
        if took_s > LIMIT_S + SLACK_S:
            overran[f"{self.title}.{name}"] = f"{took_s:.1f} s: {outcome}"


def _END(client: BatchSender) -> Any:
    return client.__aexit__()


async def made(pool: ThreadPoolExecutor, client: Any, call: Call) -> None:
    """Make a call: here if it is of an asynchronous client, in a thread of its own if not."""
    if type(client) in OF_BLOCKING:
        await asyncio.get_running_loop().run_in_executor(pool, call, client)
    else:
        result = call(client)
        if inspect.isawaitable(result):
            await result


def cold(bootstrap: str) -> list[Tried]:
    """Every call, of a client of its own that has met nobody."""
    return [
        Tried("new", new(cls, bootstrap), {name: call})
        for cls, calls in (OF_AIO | OF_BLOCKING).items()
        for name, call in calls.items()
    ]


def new(cls: type, bootstrap: str, group: str = "new") -> Any:
    if cls is BatchSender:
        return BatchSender(bootstrap, 1 << 20, PRODUCER)
    if cls is TopicCopy:
        return TopicCopy(bootstrap, TOPIC, "copied", settings=PRODUCER)
    if cls in (aio.Producer, Producer):
        return cls(bootstrap, **PRODUCER)
    if cls in (aio.Consumer, Consumer):
        consumer = cls(bootstrap, auto_offset_reset="earliest", group_id=group, **COMMON)
        consumer.assign([P0])
        return consumer
    return cls(bootstrap, **COMMON)


async def at_work(pool: ThreadPoolExecutor, bootstrap: str, mark: str) -> list[Tried]:
    """Calls of clients that have just done some work; `mark` is in the names of their groups."""
    tried: list[Tried] = []

    async def prepare(client: Any, calls: dict[str, Call]) -> None:
        tried.append(Tried("at work", client, calls))
        while True:  # its limits are short, and this machine may be busy
            with contextlib.suppress(ClientTimeout):
                return await made(pool, client, WORK[type(client)])

    def member(cls: type, name: str) -> Any:
        consumer = new(cls, bootstrap, f"{mark}-{cls.__module__}-{name}")
        consumer.assign([])
        consumer.subscribe(TOPIC)
        return consumer

    preparing = []
    for cls in (aio.Admin, AsyncRangeReader, BatchSender):
        calls = {name: call for name, call in OF_AIO[cls].items() if name != "close"}
        preparing.append(prepare(new(cls, bootstrap), calls))
    for cls, names in {aio.Producer: [*PRODUCERS], Producer: [*PRODUCERS], RangeReader: ["read_batches"]}.items():
        for name in names:
            preparing.append(prepare(new(cls, bootstrap), {name: (OF_AIO | OF_BLOCKING)[cls][name]}))
    for cls, names in {aio.Consumer: [*READING], Consumer: ["poll", "commit", "close"]}.items():
        for name in names:
            preparing.append(prepare(new(cls, bootstrap, mark), {name: READING[name]}))
        for name, call in MEMBERS.items():
            preparing.append(prepare(member(cls, name), {name: call}))
    await asyncio.gather(*preparing)
    return tried


def _turned(consumer: Any) -> Any:
    """A poll of one who wants other topics than it has records of: it has to commit, and to join anew."""
    consumer.subscribe([TOPIC, "others"])
    return consumer.poll(LIMIT_S)


MEMBERS: dict[str, Call] = {
    "poll": READING["poll"],
    "poll, turned": _turned,
    "commit": READING["commit"],
    "unsubscribe": READING["unsubscribe"],
    "close": READING["close"],
}
"""Calls of members of groups that hold records."""


async def _polled(consumer: aio.Consumer) -> None:
    while not await consumer.poll(10.0):
        pass


def _polled_here(consumer: Consumer) -> None:
    while not consumer.poll(10.0):
        pass


async def _batch_sent(sender: BatchSender) -> None:
    await sender.know(TOPIC)
    await (await sender.send(P0, _batch()))


WORK: dict[type, Call] = {
    aio.Admin: lambda c: c.describe_topics([TOPIC]),
    AsyncRangeReader: lambda c: _first(c.answers(P0, 0, 5)),
    BatchSender: _batch_sent,
    aio.Producer: lambda c: c.send_and_wait(TOPIC, b"x"),
    Producer: lambda c: c.send(TOPIC, b"x").result(10),
    RangeReader: lambda c: list(c.read_batches(TOPIC, 0, 0, 5)),
    aio.Consumer: _polled,
    Consumer: _polled_here,
}


async def overruns(tried: list[Tried]) -> dict[str, str]:
    """Everything at once; what overran."""
    with ServedTime() as served, ThreadPoolExecutor(sum(one.count for one in tried)) as pool:
        found = await asyncio.gather(*(one.run(pool, served) for one in tried))
    return {title: words for one in found for title, words in one.items()}


async def played() -> dict[str, dict[str, str]]:
    """Beside nodes that are stopped, then beside none."""
    with DevCluster(settings={"group.initial.rebalance.delay.ms": "0"}) as nodes:
        async with aio.Admin(nodes.bootstrap) as admin, aio.Producer(nodes.bootstrap) as producer:
            await admin.create_topics([NewTopic(TOPIC, 2, 3)])
            for _ in range(2_000):
                await producer.send(TOPIC, b"x", partition=0)
            await producer.flush()
        with ThreadPoolExecutor(99) as pool:
            marks = ("stopped", "gone")
            first, second = await asyncio.gather(*(at_work(pool, nodes.bootstrap, mark) for mark in marks))
        for node in nodes.node_ids:
            nodes.pause(node)
        stopped = await overruns([*cold(nodes.bootstrap), *first])
        for node in nodes.node_ids:
            nodes.kill(node)
        return {"stopped": stopped, "gone": await overruns([*cold(nodes.bootstrap), *second])}


def test_every_limit_is_kept_beside_three_nodes_that_do_not_answer() -> None:
    assert asyncio.run(played()) == {"stopped": {}, "gone": {}}
