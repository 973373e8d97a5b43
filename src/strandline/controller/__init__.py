"""Who leads and who is in sync: the Raft quorum, the metadata, the active controller, and the broker's side of it."""
