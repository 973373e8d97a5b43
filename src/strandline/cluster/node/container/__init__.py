"""A node in a container: settings from the environment, an empty volume formatted, a health check; the image's
entry point is `python -m strandline.cluster.node.container`."""
