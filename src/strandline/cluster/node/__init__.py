"""One node: its life cycle, configuration, gRPC and HTTP listeners; what prepares, runs and examines it."""
