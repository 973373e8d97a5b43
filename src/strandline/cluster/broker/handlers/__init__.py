"""Handlers of Kafka's APIs, one file per family of APIs, each with decoding, decision and encoding."""
