"""Judges runs: histories of what clients saw, and named invariants over what nodes hold.

- `history`, `anomalies`: operations of producers and consumers, and the anomaly table of rule E1 over them,
- `quorum`, `partitions`: invariants of rules A and B, checked as events run,
- `replicas`: committed prefixes compared byte by byte after the run.
"""
