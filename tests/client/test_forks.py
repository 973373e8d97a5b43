"""Clients in the child of a fork, by `os.fork` and by multiprocessing, wherever the fork comes (rule B37).

A blocking client begins anew there; what was under way is the parent's, and is refused with a sentence. Nothing waits
for a thread that the child has not, the child's interpreter ends, and the parent goes on.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from strandline.client import Admin, Consumer, NewTopic
from strandline.cluster.node.dev import DevCluster

PROGRAM = """
import multiprocessing, os, signal, sys, threading, warnings
from strandline.client import Admin, Consumer, Producer, aio
from strandline.client.errors import ClosedError
warnings.filterwarnings("ignore", "This process .* is multi-threaded")
bootstrap, topic, where, how = sys.argv[1:]
producer = Producer(bootstrap, linger_ms=5)
consumer = Consumer(bootstrap, group_id=f"{where} {how}")
admin = Admin(bootstrap)
assert topic in admin.list_topics()
parent, children, trouble = os.getpid(), [], []

def use():
    "In the child: everything works, anew."
    consumer.unsubscribe()
    assert topic in admin.list_topics()
    producer.send(topic, b"child of %s by %s" % (where.encode(), how.encode()))
    consumer.assign([(topic, 0)])
    consumer.seek((topic, 0), 0)
    while not consumer.poll(5):
        pass
    print("used", flush=True)

def forks(*_):
    "Where a program may: once."
    if os.getpid() != parent or children:
        return
    if how == "multiprocessing":
        child = multiprocessing.get_context("fork").Process(target=use)
        child.start()
        children.append(child.pid)
        return
    child = os.fork()
    children.append(child)
    if not child and where in ("the program", "a send of a thread"):
        use()
        sys.exit(0)

def end():
    "A raw child that came back here."
    if os.getpid() != parent:
        print(repr(trouble), flush=True)
        use()
        sys.exit(0)

producer.send(topic, b"first").result(20)
if where == "the program":
    forks()
elif where == "a send of a thread":
    def sends():
        for number in range(2000):
            producer.send(topic, b"%d" % number)
    thread = threading.Thread(target=sends)
    thread.start()
    forks()
    thread.join()
elif where == "a listener":
    consumer.subscribe(topic, on_assigned=forks)
    try:
        while not children:
            consumer.poll(1)
    except ClosedError as error:
        trouble.append(error)
    end()
    consumer.unsubscribe()
elif where == "a handler in a poll":
    signal.signal(signal.SIGALRM, forks)
    producer.send(topic, b"waits")
    consumer.assign([(topic, 0)])
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        while not children:
            consumer.poll(10)
    except ClosedError as error:
        trouble.append(error)
    end()
elif where == "a future's callback":
    producer.send(topic, b"called back").add_done_callback(forks)
    producer.flush(20)
elif where == "a commit's callback":
    consumer.assign([(topic, 0)])
    consumer.commit_async({(topic, 0): 0}, forks)
    while not children:
        consumer.poll(0.1)
for child in children:
    if how == "multiprocessing":
        [process] = multiprocessing.active_children() or [None]
        process and process.join(30)
        code = 0 if process is None else process.exitcode
    else:
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code == 0, code
producer.send(topic, b"last").result(20)
assert topic in admin.list_topics()
consumer.assign([(topic, 0)])
consumer.seek((topic, 0), 0)
while not consumer.poll(5):
    pass
print("done", flush=True)
"""

PLACES = [
    "the program", "a send of a thread", "a listener", "a handler in a poll", "a future's callback",
    "a commit's callback",
]  # fmt: skip


@pytest.mark.parametrize("how", ["os.fork", "multiprocessing"])
@pytest.mark.parametrize("where", PLACES)
def test_a_fork(cluster: DevCluster, where: str, how: str) -> None:
    """The child uses all three clients and ends, without having closed them; so does the parent. A child that comes
    back from a callback, on a thread of the client's, ends there."""
    topic = f"forks-{PLACES.index(where)}-{how}"
    with Admin(cluster.bootstrap) as admin:
        admin.create_topics([NewTopic(topic, 1, 3)])
    words = [sys.executable, "-c", PROGRAM, cluster.bootstrap, topic, where, how]
    done = subprocess.run(words, capture_output=True, text=True, timeout=40, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert done.stdout.endswith("done\n"), said
    if where in ("a listener", "a handler in a poll") and how == "os.fork":
        assert "belongs to the parent" in said
    on_the_clients_thread = where.endswith("callback") and how == "os.fork"
    assert done.stdout.count("used\n") == (not on_the_clients_thread), said
    with Consumer(cluster.bootstrap) as consumer:
        consumer.assign([(topic, 0)])
        consumer.seek((topic, 0), 0)
        values: list[bytes] = []
        while b"last" not in values:
            values += [record.value for record in consumer.poll(5.0)]
    assert len(values) == len(set(values)), "sent by both"
    assert sum(value.startswith(b"child") for value in values) == (not on_the_clients_thread)
    assert where != "a send of a thread" or sum(value.isdigit() for value in values) == 2000
