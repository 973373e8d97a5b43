"""Tools built on the client: they know of the cluster what any client knows.

- `handling`: a handler called with every record, tried again, and what becomes of a record that it never takes;
- `dead_letters`: how such a record is kept; `replay`: sent back to where it came from;
- `copy`: a topic copied into another one; `backup`: into files, and restored from them;
- `tier_restore`: a topic whose cluster is gone, made again of what the object store has of it;
- `lake`: a topic kept as Parquet or as an Iceberg table;
- `watch`: what changes in a cluster, as it happens.
"""
