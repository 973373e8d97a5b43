"""A node's log has a bound (rule A23)."""

from __future__ import annotations

import subprocess
import sys

from strandline.proto.notes import LINES_MAX, TRACES_MAX

PROGRAM = f"""
import logging, structlog
from strandline.cluster.node.run_node import configure_logging

configure_logging("info", "keyvalue")
ours, audit, theirs = structlog.get_logger("x"), structlog.get_logger("strandline.audit"), logging.getLogger("lib")
for number in range(2 * {LINES_MAX}):
    ours.warning("a client is a nuisance", number=number)
    audit.info("change", number=number)
    try:
        raise OSError("no room")
    except OSError as error:
        theirs.exception("it failed for %s", number)
        ours.error("internal error", exc_info=error)
ours.warning("all is well")
"""


def test_a_flood_of_one_line_leaves_the_others_their_room() -> None:
    """An internal error that each request meets, tracebacks of a library, and the audit, which has every line."""
    said = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True).stderr
    assert said.count("a client is a nuisance") == LINES_MAX
    assert said.count("event='change'") == 2 * LINES_MAX
    assert said.count("it failed for") == TRACES_MAX
    assert said.count("event='internal error'") == TRACES_MAX
    assert said.count("all is well") == 1
