"""The listener for Kafka clients, and one handler file per family of APIs; decisions are made in other rooms."""
