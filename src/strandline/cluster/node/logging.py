"""Structured logs on standard error: one line an event, as key=value pairs or as JSON."""

from __future__ import annotations

import logging
import sys

import structlog


def configure_logging(level: str, form: str) -> None:
    """Set up structlog, and the standard library's logging through it, for this process.

    Args:
        level: debug, info, warning or error.
        form: "keyvalue" or "json".
    """
    shared: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if form == "json"
        else structlog.processors.KeyValueRenderer(key_order=["timestamp", "level", "event"])
    )
    number = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(processor=renderer, foreign_pre_chain=shared))
    logging.basicConfig(level=number, handlers=[handler], force=True)
    # grpc logs its own view of what `strandline.internal` reports, tracebacks of ended calls included.
    logging.getLogger("grpc").setLevel(logging.CRITICAL)
