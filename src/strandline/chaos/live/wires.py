"""What joins the nodes of a live cluster and can be cut: proxies (`proxy.Cables`) or a bridge (`namespaces.Switch`)."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Protocol

from strandline.proto.ids import Endpoint


class Wires(Protocol):
    """Ways from each node to each other. Clients are never cut off."""

    def host(self, node_id: int) -> str:
        """The address at which a node listens."""

    def add(self, node_id: int, target: Endpoint) -> Endpoint:
        """Where other nodes shall connect to reach `node_id`, which listens at `target`."""

    def inside(self, node_id: int) -> AbstractContextManager[None]:
        """What is started or bound meanwhile, is where the node is."""

    def owns(self, node_id: int, pid: int) -> None:
        """`pid` is a process of that node."""

    def plug_in(self, node_id: int) -> None:
        """The node is up."""

    def unplug(self, node_id: int) -> None:
        """The node is down: who connects is refused."""

    def cut(self, pairs: Iterable[tuple[int, int]]) -> None:
        """From now on nothing comes from the first to the second of each pair."""

    def mend(self) -> None:
        """Everything comes through again."""

    def held(self, a: int, b: int) -> int:
        """How often something from `a` to `b` met a cut so far; raises DevError where nobody counts."""

    def close(self) -> None:
        """Take them away. Idempotent."""
