"""Searches drop what the explored cores log: afterwards it is logged again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    before = structlog.get_config()
    yield
    structlog.configure(**before)
