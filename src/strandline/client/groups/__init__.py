"""Consumer groups: the classic protocol's messages, assignors, membership and commits (KIP-62, 345, 394, 429)."""
