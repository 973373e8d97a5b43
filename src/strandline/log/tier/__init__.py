"""Segments in an object store (KIP-405): the port, the names and formats of objects, copying, reading, reaping."""
