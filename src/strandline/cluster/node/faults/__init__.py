"""Fault injection inside a node, for tests; only with `strandline.fault.injection=true`."""
