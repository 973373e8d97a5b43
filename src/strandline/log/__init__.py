"""Durable bytes: record batches, segments, indexes, epochs, recovery; the `Disk` port. Knows nothing of the network."""
