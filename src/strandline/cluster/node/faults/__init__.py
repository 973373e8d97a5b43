"""Faults inside a node, on demand: for tests, and only where `strandline.fault.injection` is true."""
