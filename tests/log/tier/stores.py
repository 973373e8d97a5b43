"""Each object store under one handle: what `test_store_contract` runs against."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any
from uuid import uuid4

from strandline.chaos.sim.object_store import SimStore
from strandline.chaos.sim.process import Process
from strandline.chaos.sim.seeds import split
from strandline.chaos.sim.world import World
from strandline.log.object_store import ObjectStore, open_store

S3_OPTIONS = {"aws_region": "us-east-1", "aws_access_key_id": "key", "aws_secret_access_key": "secret"}


class Simulated:
    """The simulator's double."""

    timeout_s = 10.0

    def __init__(self) -> None:
        self._world = World(1)
        self._machine = self._world.add_machine("n1")
        self.sim = SimStore(self._world.loop, split(1, "store"))

    def store(self) -> ObjectStore:
        return self.sim.for_node(Process(self._machine, self._world.loop))

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        contextvars.Context().run(self._world.loop.run_until_complete, work)

    def send_away(self) -> None:
        """Nobody answers the stores that are opened from now on."""
        self.sim.faults.away = True

    def leftovers(self) -> list[str]:
        """What lies in the store and is no object."""
        return []

    def close(self) -> None:
        self._world.loop.close()


class Directory:
    """A directory."""

    timeout_s = 10.0

    def __init__(self, root: Path) -> None:
        self._root = root / "made" / "here"
        self._is_away = False

    def store(self) -> ObjectStore:
        store = open_store(f"file://{self._root}", {}, timeout_ms=10_000)
        if self._is_away:
            self.unmount()
        return store

    def unmount(self) -> None:
        """A bare directory is in its place, as below a mount that goes."""
        self._root.rename(self._root.parent / "mounted")
        self._root.mkdir()

    def mount(self) -> None:
        """And back."""
        self._root.rmdir()
        (self._root.parent / "mounted").rename(self._root)

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run(work)

    def send_away(self) -> None:
        self._is_away = True

    def leftovers(self) -> list[str]:
        return [path.name for path in self._root.rglob("*") if path.is_file() and path.name != ".strandline-store"]

    def close(self) -> None:
        """Nothing runs."""


class S3:
    """A bucket of its own on an S3 server."""

    timeout_s = 3.0

    def __init__(self, endpoint: str) -> None:
        import boto3

        self._endpoint = endpoint
        self.bucket = f"b-{uuid4()}"
        self.client = boto3.client(
            "s3",
            endpoint_url=endpoint,
            region_name="us-east-1",
            aws_access_key_id="key",
            aws_secret_access_key="secret",
        )
        self.client.create_bucket(Bucket=self.bucket)

    def store(self) -> ObjectStore:
        options = {**S3_OPTIONS, "aws_endpoint": self._endpoint}
        return open_store(f"s3://{self.bucket}/pre/fix", options, timeout_ms=1000 * self.timeout_s)

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run(work)

    def send_away(self) -> None:
        self._endpoint = "http://127.0.0.1:9"

    def leftovers(self) -> list[str]:
        return [item["Key"] for item in self.client.list_multipart_uploads(Bucket=self.bucket).get("Uploads", [])]

    def close(self) -> None:
        self.client.close()


Bench = Simulated | Directory | S3


async def chunked(data: bytes, size: int) -> AsyncIterator[bytes]:
    """The bytes in pieces."""
    for start in range(0, len(data), size):
        yield data[start : start + size]
