"""The listener that Kafka clients connect to: frames, one small file an API, no decisions."""
