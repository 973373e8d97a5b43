"""Groups of the classic protocol: one member leads, and assigns the partitions."""
