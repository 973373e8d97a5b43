"""What answers Kafka's APIs: a file a family, each with its decoding, its decision and its encoding."""
