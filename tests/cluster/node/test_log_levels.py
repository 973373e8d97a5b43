"""Levels of loggers reach what a node's process writes (rule A41)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import MutableMapping

import structlog

from strandline.cluster.broker.log_levels import LogLevels
from strandline.cluster.node.log_wiring import LevelledLogger, LevelledLoggers

PROGRAM = """
import logging, structlog
from strandline.cluster.node.run_node import configure_logging

early = structlog.get_logger("strandline.kafka")
levels = configure_logging("info", "keyvalue")

def say(when):
    for logger in (early, structlog.get_logger("strandline.kafka"), structlog.get_logger("strandline.log")):
        logger.debug(f"{when} debug")
        logger.info(f"{when} info")
        logger.exception(f"{when} exception")
        logger.critical(f"{when} critical")
    logging.getLogger("asyncio").info(f"{when} theirs")
    logging.getLogger("grpc").error(f"{when} grpc's")

say("first")
levels.set("strandline", "ERROR")
levels.set("strandline.kafka", "TRACE")
levels.set("asyncio", "WARN")
levels.set("grpc", "INFO")
say("then")
levels.unset("strandline")
levels.unset("strandline.kafka")
levels.unset("asyncio")
levels.unset("grpc")
say("last")
levels.set("root", "FATAL")
say("quiet")
"""


def test_a_logger_goes_by_the_level_of_now() -> None:
    """Of one name and of all above it, for loggers that were made before."""
    levels = LogLevels({})
    loggers = LevelledLoggers(levels)
    levels.applied_by(loggers.apply)
    said: list[str] = []

    def note(_: object, method: str, figures: MutableMapping[str, object]) -> MutableMapping[str, object]:
        said.append(f"{method} {figures['event']}")
        raise structlog.DropEvent

    log = LevelledLogger(loggers("strandline.log"), [note], {})
    for level in ("INFO", "DEBUG", "ERROR", "FATAL"):
        levels.set("strandline", level)
        for write in (log.debug, log.info, log.warning, log.error, log.critical):
            write(level)
    assert said == [
        "info INFO", "warning INFO", "error INFO", "critical INFO",
        "debug DEBUG", "info DEBUG", "warning DEBUG", "error DEBUG", "critical DEBUG",
        "error ERROR", "critical ERROR", "critical FATAL",
    ]  # fmt: skip


def test_levels_that_change_count_for_every_logger_of_the_process() -> None:
    """Loggers that were made before and behind a change, of one name in several modules; libraries' too."""
    said = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True).stderr
    assert "Traceback" not in said
    lines = [line.partition("event=")[2].partition("' ")[0].strip("'") for line in said.splitlines()]
    counts = {text: lines.count(text) for text in sorted(set(lines)) if text}
    counts |= {text: said.count(text) for text in ("first theirs", "then theirs", "last theirs", "quiet theirs")}
    grpc = {when: said.count(f"{when} grpc's") for when in ("first", "then", "last", "quiet")}
    assert {text: count for text, count in counts.items() if "theirs" not in text and "grpc" not in text} == {
        "first info": 3,
        "first exception": 3,
        "first critical": 3,
        "then debug": 2,
        "then info": 2,
        "then exception": 3,
        "then critical": 3,
        "last info": 3,
        "last exception": 3,
        "last critical": 3,
        "quiet critical": 3,
    }
    assert [counts[f"{when} theirs"] for when in ("first", "then", "last", "quiet")] == [1, 0, 1, 0]
    assert grpc == {"first": 0, "then": 1, "last": 0, "quiet": 0}
