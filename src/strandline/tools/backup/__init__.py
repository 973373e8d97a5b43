"""A topic copied into files, and back: every committed record under the offset it had.

- `files`: the directory: segment files in Kafka's format, and a manifest that says what must be in them,
- `take`: cluster -> directory,
- `restore`: directory -> cluster, by way of `client.batch_sender`, which sends whole batches as they are.
"""
