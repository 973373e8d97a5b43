"""The node, in three rooms: `node` (life cycle) upon `broker` (listener, Kafka's APIs) upon `groups` (coordinators)."""
