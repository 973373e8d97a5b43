"""Strandline: a replicated commit log in Python.

The folders, from the bottom: `proto` (vocabulary), `log` (durable bytes), `controller`, `replica` and `client`
(siblings), `cluster` (the node) and `spark`, `chaos` (the simulator and the fault injectors).
"""

__version__ = "0.1.0"
