"""A client whose login is refused: it asks again at a pace, whoever is told and asks at once."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from strandline.client.config import ProducerConfig
from strandline.client.errors import AuthenticationFailed
from strandline.client.metadata import Metadata
from strandline.proto.error_codes import ErrorCode
from strandline.proto.system import SystemClock


def test_a_refused_login_makes_no_busy_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """The refusal is remembered and raised at once; a sender that wants metadata asks whenever a fetch has ended."""
    fetches = 0

    async def refused(_: Metadata) -> None:
        nonlocal fetches
        fetches += 1
        raise AuthenticationFailed(ErrorCode.SASL_AUTHENTICATION_FAILED, "the password is wrong")

    async def scenario() -> None:
        network: Any = None
        config = ProducerConfig({"retry.backoff.ms": 50})
        metadata = Metadata(network, config, SystemClock(), random.Random(1))
        loop = asyncio.get_running_loop()
        metadata.subscribe(lambda: loop.call_soon(metadata.request_update))
        metadata.request_update()
        await asyncio.sleep(0.5)
        await metadata.close()

    monkeypatch.setattr(Metadata, "_fetch", refused)
    asyncio.run(scenario())
    assert 1 < fetches < 30
