"""Consumer groups: a pure shard for each partition of `__consumer_offsets`."""
