"""The vocabulary of every layer: ids, the error tree with Kafka's codes, the ports, the messages between nodes."""
