"""The node: configuration, service, listeners, HTTP, the command line; puts the layers below together."""
