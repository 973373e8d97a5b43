"""The benches of the quorum's own tests, which stand in folders that are no packages."""

from __future__ import annotations

import sys
from pathlib import Path

CONTROLLER = Path(__file__).parent.parent.parent / "controller"
sys.path[:0] = [str(CONTROLLER / "raft"), str(CONTROLLER / "quorum")]
