"""A node in a container: reads settings from the environment, formats an empty volume, and has a health check; the
image's entry point is `python -m strandline.cluster.node.container`."""
