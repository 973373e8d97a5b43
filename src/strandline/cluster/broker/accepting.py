"""What a connection uses of the listener that accepted it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from strandline.cluster.broker.api import ServedApi
from strandline.cluster.broker.config import ListenerConfig
from strandline.cluster.broker.loop_time import LoopTime
from strandline.cluster.broker.memory import MemoryBudget
from strandline.cluster.broker.quotas.client_quotas import ClientQuotas
from strandline.cluster.broker.sasl import SaslDoor
from strandline.cluster.broker.stats import ListenerStats
from strandline.cluster.security.tls_door import ListenerTls
from strandline.proto.notes import Notes
from strandline.proto.ports import Clock


class Listener(Protocol):
    """The listener that accepted a connection (`strandline.cluster.broker.listener`).

    Attributes:
        name: which of the node's listeners it is.
        apis: by API key.
        memory: the budget of the node.
        loop_time: what clients take of the node's loop.
        notes: of what clients cause.
        tls: what it knows of clients by their certificates, where it speaks TLS.
        sasl: how they prove who they are, where it speaks SASL.
    """

    name: str
    config: ListenerConfig
    apis: Mapping[int, ServedApi]
    memory: MemoryBudget
    loop_time: LoopTime
    clock: Clock
    stats: ListenerStats
    notes: Notes
    tls: ListenerTls | None
    sasl: SaslDoor | None

    @property
    def quotas(self) -> ClientQuotas | None:
        """What clients may take of the broker; None while no quota is set."""

    def opened(self, connection: Any) -> None:
        """A client has connected."""

    def lost(self, connection: Any, reason: str) -> None:
        """It has gone; `reason` "" unless it was refused."""
