"""One file an API of Kafka's protocol: wire in, service call, wire out."""
