"""Other people's clients and the files on disk, for the tests of rows."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from bench.fetched import Unavailable
from click.testing import CliRunner, Result
from interop.tools import KafkaTools

from interop import install
from strandline.cli.topics import topic as topic_command

needs_kcat = pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not installed")

_BATCH_LENGTH = struct.Struct(">i")


def kcat(*arguments: str, stdin: bytes = b"", fails: bool = False) -> str:
    """Run kcat; its standard output, or its standard error where it must fail."""
    done = subprocess.run(["kcat", *arguments], input=stdin, capture_output=True, timeout=40, check=False)
    assert (done.returncode != 0) == fails, (done.returncode, done.stderr)
    return (done.stderr if fails else done.stdout).decode()


def topic_cli(bootstrap: str, *arguments: str, exit_code: int = 0) -> Result:
    """`strandline topic ...`; its result."""
    result = CliRunner().invoke(topic_command, [*arguments, "--bootstrap", bootstrap])
    assert result.exit_code == exit_code, (result.output, result.stderr, result.exception)
    return result


def stored_batches(data_dir: str, topic: str, partition: int = 0) -> list[bytes]:
    """The record batches in a partition's segment files, as they stand on disk."""
    batches = []
    for content in segment_contents(data_dir, topic, partition):
        position = 0
        while position + 12 <= len(content):
            (length,) = _BATCH_LENGTH.unpack_from(content, position + 8)
            if not length:
                break  # preallocated zeros
            batches.append(content[position : position + 12 + length])
            position += 12 + length
    return batches


def segment_files(data_dir: str, topic: str, partition: int = 0) -> Sequence[Path]:
    """A partition's segment files, in order."""
    return sorted(Path(data_dir, f"{topic}-{partition}").glob("*.log"))


def segment_contents(data_dir: str, topic: str, partition: int = 0) -> list[bytes]:
    """What a partition's segment files hold, in order. Compaction puts files in the place of others: a list that is no
    longer true is made anew."""
    for _ in range(100):
        try:
            return [segment.read_bytes() for segment in segment_files(data_dir, topic, partition)]
        except FileNotFoundError:
            continue
    raise AssertionError(f"the files of {topic}-{partition} never stand still")


def kafka_tools(bootstrap: str) -> KafkaTools:
    """Kafka's command-line tools as `make interop` cached them; skips the test where they, or Java, are not here."""
    try:
        return KafkaTools(bootstrap, [*install.java(fetch=False), "Tools"])
    except Unavailable as reason:
        pytest.skip(f"{reason}; `make interop` fetches them")


@contextmanager
def apache_kafka() -> Iterator[str]:
    """Three brokers of Apache Kafka, or those that STRANDLINE_KAFKA_BOOTSTRAP names (topics are made there: a Kafka to
    be thrown away); skips the test where its jars, or Java, cannot be had."""
    from bench.clusters import KafkaCluster, wait_ready

    named = os.environ.get("STRANDLINE_KAFKA_BOOTSTRAP", "")
    if named:
        yield named
        return
    try:
        cluster = KafkaCluster()
    except Unavailable as reason:
        pytest.skip(f"{reason}; or name a Kafka in STRANDLINE_KAFKA_BOOTSTRAP")
    try:
        cluster.start()
        wait_ready(cluster.bootstrap)
        yield cluster.bootstrap
    finally:
        cluster.stop()


def java_class_path() -> str:
    """Apache Kafka's jars as the benchmarks cached them; skips the test where they, or a JDK, are not here."""
    from bench.clusters import KAFKA_VERSION, kafka_jars

    cached = Path.home() / ".cache" / "strandline-bench" / KAFKA_VERSION / "complete"
    if shutil.which("java") is None or not cached.exists():
        pytest.skip("Java and Apache Kafka's jars are not here; `make bench` fetches them")
    return kafka_jars()
