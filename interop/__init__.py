"""Other people's Kafka clients and tools, unmodified, against a cluster: `python -m interop`, see docs/interop.md."""
