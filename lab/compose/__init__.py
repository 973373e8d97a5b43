"""The image and the compose files under faults: an engine, the image, a cluster of its containers."""
