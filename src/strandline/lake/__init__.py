"""What a lake is: a directory, or a prefix in an object store, that knows by itself how far it is.

- `stores`: where its files lie;
- `commits`: what counts, and up to which offset of each partition: one format for `strandline lake` and Spark's jobs;
- `upkeep`: small files joined, leftovers deleted, all of it checked.
"""
