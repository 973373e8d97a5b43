"""What clients make a broker remember between their requests: bounded altogether, and for each principal (rule A27).

Requests and answers that are under way count in the memory budget, and wait where it is used up. What is kept here
waits for nothing: where there is no room, it is not kept, and the client is served without it.
"""

from __future__ import annotations

PARTITION_BYTES = 500
"""A partition of a fetch session, or of a fetch that waits, as measured, rounded up."""

FETCH_BYTES = 2000
"""A request that waits, whatever it asks for."""


class KeptMemory:
    """Bytes that are kept for clients, by principal.

    Invariants: at most `limit_bytes`, of one principal at most three quarters of that; a principal for whom nothing is
    kept is not remembered.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.of_principal_bytes = limit_bytes * 3 // 4
        self.used_bytes = 0
        self.refused = 0
        """How often there was no room."""
        self._by_principal: dict[str, int] = {}

    def hold(self, principal: str, size: int) -> bool:
        """Keep so much more for it; or false, and there is no room."""
        held = self._by_principal.get(principal, 0) + size
        # rule A27/one-principal-is-kept-everything
        if self.used_bytes + size > self.limit_bytes or held > self.of_principal_bytes:
            self.refused += 1
            return False
        self._by_principal[principal] = held
        self.used_bytes += size
        return True

    def release(self, principal: str, size: int) -> None:
        """So much is kept no more. Raises AssertionError for more than was held."""
        held = self._by_principal.get(principal, 0) - size
        if held < 0:
            raise AssertionError(f"More released than was held for {principal}: {held}")
        self.used_bytes -= size
        if held:
            self._by_principal[principal] = held
        else:
            self._by_principal.pop(principal, None)

    def held_for(self, principal: str) -> int:
        """What is kept for it."""
        return self._by_principal.get(principal, 0)
