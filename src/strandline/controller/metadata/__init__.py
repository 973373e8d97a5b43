"""The metadata of a cluster: its records, the image they add up to, and who is told of changes."""
