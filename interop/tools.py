"""Apache Kafka's command-line tools behind the drivers' calls; each call runs one's main method."""

from __future__ import annotations

import base64
import itertools
import json
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from interop.driver import ClientError, DriverGone, NotSupported, ProcessDriver, ToolDriver
from interop.logins import OPEN, Login, as_properties
from interop.suite import ERROR_NAMES

VERIFY_TIMEOUT_S = 60.0

CLASSES = {
    "kafka-acls": "org.apache.kafka.tools.AclCommand",
    "kafka-topics": "org.apache.kafka.tools.TopicCommand",
    "kafka-client-metrics": "org.apache.kafka.tools.ClientMetricsCommand",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "kafka-dump-log": "org.apache.kafka.tools.DumpLogSegments",
    "kafka-log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "kafka-metadata-quorum": "org.apache.kafka.tools.MetadataQuorumCommand",
    "kafka-transactions": "org.apache.kafka.tools.TransactionsCommand",
    "kafka-reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "kafka-delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "kafka-console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
}
OFFLINE = ("kafka-dump-log",)
"""Tools that look at files and ask no broker."""

EXCEPTIONS = {
    "TopicExistsException": 36,
    "already exists": 36,
    "InvalidTopicException": 17,
    "characters other than ASCII": 17,
    "would not be an increase": 37,
    "must be greater than 0": -1,
    "Unable to replicate": 38,
    "InvalidConfigurationException": 40,
    "Invalid value": 40,
    "UnknownTopicOrPartitionException": 3,
    "does not exist as expected": 3,
    "not present in metadata": 3,
    "RecordTooLargeException": 10,
    "Could not match any topic-partitions": 3,
    "TopicAuthorizationException": 29,
    "Not authorized to access topics": 29,
    "GroupAuthorizationException": 30,
    "SaslAuthenticationException": 58,
    "GroupNotEmptyException": 68,
    "GroupIdNotFoundException": 69,
    "because the ID could not be found": 105,
}


def code_in(text: str) -> int:
    """Kafka's code for the exception that a tool printed."""
    named = next((code for code, name in ERROR_NAMES.items() if name in text), None)
    return named if named is not None else next((code for words, code in EXCEPTIONS.items() if words in text), -1)


class KafkaTools(ToolDriver):
    """kafka-topics.sh and its siblings, each a main class of Kafka's jars."""

    def __init__(self, bootstrap: str, command: Sequence[str], login: Login = OPEN) -> None:
        self._bootstrap = bootstrap
        self._command = command
        self._login = login
        self._settings: Path | None = None
        self._java: ProcessDriver | None = None
        self._group: list[str] = []

    def run(self, tool: str, *arguments: str, stdin: bytes = b"") -> str:
        """What a tool printed.

        Raises:
            ClientError: it ended with an error, or printed one.
            DriverGone: it did not end in time.
        """
        done = self._start(tool, *arguments, stdin=stdin)
        said: str = done["out"]
        wrong = re.sub(r"^SLF4J.*\n", "", done["err"], flags=re.M)
        if done["code"] or "Exception" in wrong or said.lstrip().startswith("Error"):
            text = wrong + said
            raise ClientError(code_in(text), f"{tool}: {text.strip()[:300]}")
        return said

    def both(self, tool: str, *arguments: str, stdin: bytes = b"") -> str:
        """What a tool wrote to its standard error and output, however it ended."""
        done = self._start(tool, *arguments, stdin=stdin)
        return f"{done['err']}{done['out']}"

    def _start(self, tool: str, *arguments: str, stdin: bytes) -> dict[str, Any]:
        """Run a tool's main method in the one Java process of this client."""
        if self._java is None:
            self._java = ProcessDriver(self._command, self._login.environment())
        given = [*arguments] if tool in OFFLINE else [*self._reached_by(), *arguments]
        try:
            return self._java.call("run", main=CLASSES[tool], arguments=given, stdin=base64.b64encode(stdin).decode())
        except DriverGone:
            self.stop()
            raise

    def _reached_by(self) -> list[str]:
        """The arguments of every tool that asks a broker."""
        where = ["--bootstrap-server", self._bootstrap]
        if self._login == OPEN:
            return where
        if self._settings is None:
            self._settings = Path(tempfile.mkdtemp(prefix="interop-tools-"), "client.properties")
            self._settings.write_text(as_properties(self._login.java()))
        return [*where, "--command-config", str(self._settings)]

    def stop(self) -> None:
        if self._java is not None:
            self._java.stop()
            self._java = None
        if self._settings is not None:
            shutil.rmtree(self._settings.parent, ignore_errors=True)
            self._settings = None

    close = stop

    # Topics

    def op_create_topic(self, topic: str, partitions: int, replication: int, configs: dict[str, str]) -> None:
        given = [text for name, value in configs.items() for text in ("--config", f"{name}={value}")]
        wanted = ("--partitions", str(partitions), "--replication-factor", str(replication))
        self.run("kafka-topics", "--create", "--topic", topic, *wanted, *given)

    def op_delete_topic(self, topic: str) -> None:
        self.run("kafka-topics", "--delete", "--topic", topic)

    def op_describe_topic(self, topic: str) -> dict[str, Any]:
        said = self.run("kafka-topics", "--describe", "--topic", topic)
        found = re.findall(r"Partition: \d+\s+Leader: (\w+)\s+Replicas: ([\d,]+)", said)
        return {
            "partitions": [
                {
                    "leader": int(leader) if leader.isdigit() else -1,
                    "replicas": [int(each) for each in copies.split(",")],
                }
                for leader, copies in found
            ]
        }

    def op_alter_config(self, topic: str, configs: dict[str, str]) -> None:
        added = ",".join(f"{name}={value}" for name, value in configs.items())
        self.run("kafka-configs", "--alter", "--entity-type", "topics", "--entity-name", topic, "--add-config", added)

    def op_describe_config(self, topic: str) -> dict[str, Any]:
        said = self.run("kafka-configs", "--describe", "--entity-type", "topics", "--entity-name", topic, "--all")
        return {"configs": dict(re.findall(r"^\s+([\w.]+)=(\S*) sensitive=", said, re.M))}

    def op_create_partitions(self, topic: str, total: int) -> None:
        self.run("kafka-topics", "--alter", "--topic", topic, "--partitions", str(total))

    def op_delete_records(self, topic: str, partition: int, before: int) -> None:
        with tempfile.TemporaryDirectory() as directory:
            file = Path(directory, "offsets.json")
            where = {"topic": topic, "partition": partition, "offset": before}
            file.write_text(json.dumps({"partitions": [where], "version": 1}))
            self.run("kafka-delete-records", "--offset-json-file", str(file))

    def op_offset_at(self, topic: str, partition: int, at: str | int) -> dict[str, Any]:
        said = self.run("kafka-get-offsets", "--topic", topic, "--partitions", str(partition), "--time", str(at))
        found = re.search(rf"^{re.escape(topic)}:{partition}:(\d+)$", said, re.M)
        return {"offset": int(found.group(1)) if found else -1}

    # Records

    def op_produce(
        self, topic: str, records: list[dict[str, Any]], acks: str, codec: str, idempotent: bool
    ) -> dict[str, Any]:
        if any("timestamp" in each for each in records):
            raise NotSupported("cannot set a timestamp")
        keyed = "key" in records[0]
        if not keyed and "partition" in records[0] and records[0]["partition"] != 0:
            raise NotSupported("cannot choose a partition")
        lines = b"".join(
            (base64.b64decode(each["key"]) + b"\t" if keyed else b"") + base64.b64decode(each["value"]) + b"\n"
            for each in records
        )
        settings = {
            "acks": acks,
            "compression.type": codec,
            "enable.idempotence": str(idempotent).lower(),
            "max.request.size": "8000000",
            "max.block.ms": "15000",
        }
        given = [text for name, value in settings.items() for text in ("--command-property", f"{name}={value}")]
        reader = ["--reader-property", "parse.key=true"] if keyed else []
        self.run("kafka-console-producer", "--topic", topic, "--sync", "--timeout", "1", *given, *reader, stdin=lines)
        if not keyed:
            return {"sent": [{"partition": 0, "offset": number} for number in range(len(records))]}
        placed = {
            each["key"]: each["partition"] for each in self._consume(len(records), "--topic", topic, "--from-beginning")
        }
        return {"sent": [{"partition": placed[each["key"]], "offset": -1} for each in records]}

    def _consume(self, count: int, *arguments: str) -> list[dict[str, Any]]:
        """Records as the console consumer prints them, with everything it can print."""
        shown = ("timestamp", "partition", "offset", "key", "value")
        given = [text for name in shown for text in ("--formatter-property", f"print.{name}=true")]
        ends = ("--max-messages", str(count), "--timeout-ms", "15000")
        said = self.run("kafka-console-consumer", *arguments, *given, *ends)
        records = []
        for line in said.splitlines():
            when, partition, offset, key, value = line.split("\t", 4)
            records.append(
                {
                    "partition": int(partition.removeprefix("Partition:")),
                    "offset": int(offset.removeprefix("Offset:")),
                    "timestamp": int(when.removeprefix("CreateTime:")),
                    "key": None if key == "null" else base64.b64encode(key.encode()).decode(),
                    "value": base64.b64encode(value.encode()).decode(),
                }
            )
        return records

    def op_fetch(self, topic: str, partition: int, offset: int, count: int, timeout_ms: int) -> dict[str, Any]:
        if offset > self.op_offset_at(topic, partition, "latest")["offset"]:
            raise NotSupported("tells errors of fetching to its log alone")
        where = ("--topic", topic, "--partition", str(partition), "--offset", str(offset))
        return {"records": self._consume(count, *where, "--command-property", "auto.offset.reset=none")}

    def op_verify_replicas(self, topic: str, end: int) -> dict[str, Any]:
        """Run kafka-replica-verification until it has compared every replica up to `end`; what it printed. It goes on
        for ever, so it is a process of its own, and killed."""
        if self._login != OPEN:
            raise NotSupported("kafka-replica-verification takes no settings of a client")
        tool = "org.apache.kafka.tools.ReplicaVerificationTool"
        given = ("--broker-list", self._bootstrap, "--topics-include", topic, "--time", "-2")
        compared = f"max lag is 0 for partition {topic}-"
        said: list[str] = []
        with subprocess.Popen(
            [*self._command[:-1], tool, *given, "--report-interval-ms", "500"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process:
            assert process.stdout is not None
            timer = threading.Timer(VERIFY_TIMEOUT_S, process.kill)
            timer.start()
            for line in process.stdout:
                said.append(line)
                if compared in line and f"at offset {end} " in line:
                    break
            timer.cancel()
            process.kill()
        return {"said": "".join(said), "complete": bool(said) and compared in said[-1]}

    # Moves between brokers

    def op_reassign(self, what: str, moves: dict[str, list[int]], options: list[str]) -> dict[str, Any]:
        """Run kafka-reassign-partitions with a file of these moves ("topic-0" -> brokers); what it printed."""
        partitions = [
            {"topic": where.rpartition("-")[0], "partition": int(where.rpartition("-")[2]), "replicas": replicas}
            for where, replicas in moves.items()
        ]
        with tempfile.TemporaryDirectory() as directory:
            file = Path(directory, "moves.json")
            file.write_text(json.dumps({"version": 1, "partitions": partitions}))
            given = ["--reassignment-json-file", str(file)] if moves else []
            return {"said": self.run("kafka-reassign-partitions", f"--{what}", *given, *options)}

    def op_plan(self, topic: str, brokers: list[int]) -> dict[str, Any]:
        """What kafka-reassign-partitions --generate proposes: "topic-0" -> brokers."""
        with tempfile.TemporaryDirectory() as directory:
            file = Path(directory, "topics.json")
            file.write_text(json.dumps({"version": 1, "topics": [{"topic": topic}]}))
            wanted = ("--topics-to-move-json-file", str(file), "--broker-list", ",".join(map(str, brokers)))
            said = self.run("kafka-reassign-partitions", "--generate", *wanted)
        proposed = json.loads(said.splitlines()[-1])["partitions"]
        return {"moves": {f"{one['topic']}-{one['partition']}": one["replicas"] for one in proposed}}

    # Transactions

    def op_transactions(self, command: str, options: list[str]) -> dict[str, Any]:
        """Run a command of kafka-transactions; the rows of the table that it printed, by their headings."""
        table = [
            line.split() for line in self.run("kafka-transactions", command, *options).splitlines() if line.strip()
        ]
        return {"rows": [dict(itertools.zip_longest(table[0], row, fillvalue="")) for row in table[1:]]}

    # The metadata quorum

    def op_describe_quorum(self, what: str) -> dict[str, Any]:
        """What kafka-metadata-quorum describe prints: its "status", or its "replication"."""
        return {"said": self.run("kafka-metadata-quorum", "describe", f"--{what}")}

    # Groups: the console consumer is a member while it runs, and commits when it ends

    def op_join(self, group: str, topics: list[str], assignor: str, instance: str | None, protocol: str) -> None:
        settings = ["--command-property", f"group.protocol={protocol}"]
        self._group = ["--group", group, "--topic", topics[0], "--from-beginning", *settings]

    def op_poll(self, timeout_ms: int, count: int) -> dict[str, Any]:
        if count < 2:
            raise NotSupported("cannot be asked what it was assigned")
        return {"records": self._consume(count, *self._group), "assigned": []}

    def op_commit(self) -> None:
        """Done by the console consumer when it ended."""

    def op_close(self) -> None:
        self._group = []

    def op_list_groups(self) -> dict[str, Any]:
        return {"groups": self.run("kafka-consumer-groups", "--list").split()}

    def _alone(self) -> None:
        if self._group:
            raise NotSupported("one command at a time: its member has left")

    def op_describe_group(self, group: str) -> dict[str, Any]:
        self._alone()
        said = self.run("kafka-consumer-groups", "--describe", "--group", group, "--state").splitlines()[-1]
        *_, state, members = said.split()
        return {"state": state, "members": int(members)}

    def op_committed(self, group: str, topic: str, partitions: list[int]) -> dict[str, Any]:
        said = self.run("kafka-consumer-groups", "--describe", "--group", group)
        found = re.findall(rf"^{re.escape(group)}\s+{re.escape(topic)}\s+(\d+)\s+(?:-\s+)?(\d+)", said, re.M)
        return {"offsets": {partition: int(offset) for partition, offset in found}}

    def op_reset_group(self, group: str, topic: str, offsets: dict[str, int]) -> None:
        for partition, offset in offsets.items():
            which = ("--group", group, "--topic", f"{topic}:{partition}", "--to-offset", str(offset))
            self.run("kafka-consumer-groups", "--reset-offsets", *which, "--execute")

    def op_delete_group(self, group: str) -> None:
        self._alone()
        self.run("kafka-consumer-groups", "--delete", "--group", group)
