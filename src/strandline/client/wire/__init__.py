"""Kafka's wire protocol, the client's half: frames, versions, connections."""
