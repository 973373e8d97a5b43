"""Options of every client process."""

from __future__ import annotations

import json
import os
import selectors
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from strandline.chaos.checkers.history import Partition
from strandline.chaos.live.target import client_settings
from strandline.proto.json_text import read_json

SWEEP_S = 0.2
"""Seconds that the end of an operation may wait before it is written down."""

FLUSH_S = 90.0
"""Seconds that producers have, once told to finish."""

FINAL_S = 120.0
"""Seconds that reading everything may take."""

CLASS_PATH = "STRANDLINE_KAFKA_CLASS_PATH"
"""Environment variable of Apache Kafka's copier: a class path with its kafka-tools and what they need."""

ORDERS, BILLS = "chaos-orders", "chaos-bills"
ORIGINALS, COPIES = "chaos-originals", "chaos-copies"
TRANSACTIONAL_TOPICS = {ORDERS: 3, BILLS: 3}
"""Topics of librdkafka's transactions, and their partitions: what writers write, and what pipelines make of it."""

COPIED_TOPICS = {ORIGINALS: 1, COPIES: 1}
"""Number of partitions of the topics of Apache Kafka's copier: its input, and its transactional output."""


@dataclass(frozen=True)
class ClientOptions:
    """One client process.

    Attributes:
        name: the journal's name; what the process's values begin with.
        gap_ms: the mean pause between two sends of one producer.
        final: read everything from the beginning, once, and send nothing.
        properties: the path of a file with Kafka's client settings; empty: none are needed. Not the settings
            themselves, for everybody on the machine sees a process's arguments.
    """

    bootstrap: str
    topics: dict[str, int]
    name: str
    journal: str
    seed: int
    gap_ms: float
    value_bytes_max: int = 40
    final: bool = False
    properties: str = ""

    def encode(self) -> str:
        """Text for the process's argument."""
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: str) -> ClientOptions:
        """Back from the argument."""
        return cls(**read_json(text))

    @property
    def settings(self) -> dict[str, Any]:
        """Settings in that file."""
        return client_settings(Path(self.properties) if self.properties else None)

    @property
    def partitions(self) -> list[Partition]:
        """Every partition of every topic."""
        return partitions_of(self.topics)


def partitions_of(topics: Mapping[str, int]) -> list[Partition]:
    """Every partition of these topics; `topics`: name -> number of partitions."""
    return [Partition(topic, number) for topic, count in topics.items() for number in range(count)]


class InputEnd:
    """Whether standard input has ended, which is how the parent says: finish."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._selector.register(0, selectors.EVENT_READ)
        self._over = False

    def __call__(self) -> bool:
        """True if standard input has ended; does not wait."""
        while not self._over and self._selector.select(0):
            self._over = not os.read(0, 4096)
        return self._over
