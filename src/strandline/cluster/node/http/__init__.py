"""The HTTP listener: metrics, health, readiness."""
