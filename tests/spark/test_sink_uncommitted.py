"""A task of the sink that is repeated while what its first run wrote waits for a follower that does not answer."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter

import pytest

from strandline.client import Admin
from strandline.cluster.node.dev import DevCluster
from tests.acceptance.helpers import QUICK, eventually
from tests.acceptance.topics import create, drain

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from strandline.spark.ledger import TaskKey  # noqa: E402
from strandline.spark.sink import write_rows  # noqa: E402
from strandline.spark.sink_options import LEDGER_TOPIC, parse_sink_options  # noqa: E402

pytestmark = pytest.mark.timeout(240)

SETTINGS = QUICK | {"replica.lag.time.max.ms": "8000", "broker.session.timeout.ms": "8000"}
"""A silent follower is waited for longer than a repeated task waits before it looks."""

KEY = TaskKey("query-uncommitted", 0, 0)

FIRST_RUN = """
import json, sys
import pyarrow as pa
from strandline.spark.ledger import TaskKey
from strandline.spark.sink import write_rows
from strandline.spark.sink_options import parse_sink_options
def batches():
    yield pa.RecordBatch.from_pydict({"value": [b"0"]})
    print("begun", flush=True)
    sys.stdin.readline()
    yield pa.RecordBatch.from_pydict({"value": [b"%d" % number for number in range(1, 50)]})
    sys.stdin.readline()
write_rows(parse_sink_options(json.loads(sys.argv[1])), TaskKey("query-uncommitted", 0, 0), batches())
"""


def test_rows_that_are_not_committed_yet_are_waited_for() -> None:
    """An executor and a follower die together: a machine. The leader has the rows, no reader sees them until it goes on
    without the follower; the repeated task wrote them again, and then both were committed."""
    with DevCluster(settings=SETTINGS) as own:
        create(own.bootstrap, "late", 1, 3)
        told = {"kafka.bootstrap.servers": own.bootstrap, "topic": "late", "kafka.request.timeout.ms": "3000"}
        first = subprocess.Popen(
            [sys.executable, "-c", FIRST_RUN, json.dumps(told)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert first.stdin is not None
        assert first.stdout is not None
        try:
            assert first.stdout.readline() == "begun\n"
            with Admin(own.bootstrap) as admin:
                leads = [topic.partitions[0].leader for topic in admin.describe_topics(["late", LEDGER_TOPIC])]
                eventually(lambda: last_sequences(admin) == [0])
                own.pause(next(node for node in own.node_ids if node not in leads))
                first.stdin.write("\n")
                first.stdin.flush()
                eventually(lambda: last_sequences(admin) == [49])
            first.send_signal(signal.SIGKILL)
            rows = [b"%d" % number for number in range(50)]
            told["kafka.bootstrap.servers"] = own.responsive
            again = write_rows(parse_sink_options(told), KEY, iter([pa.RecordBatch.from_pydict({"value": rows})]))
        finally:
            first.kill()
            first.wait()
        assert (again.found, again.sent) == (50, 0)
        assert Counter(record.value for record in drain(own.responsive, "late", 1)) == Counter(rows)


def last_sequences(admin: Admin) -> list[int]:
    [told] = admin.describe_producers([("late", 0)]).values()
    return [one.last_sequence for one in told]
