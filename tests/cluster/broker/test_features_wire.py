"""UpdateFeatures in all its versions, and the levels that ApiVersions tells (KIP-584)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kafka_case import run
from kafka_node import KafkaNode
from kafka_wire import KafkaClient

from strandline.proto.error_codes import ErrorCode

METADATA = "metadata.version"


def asked(level: int, kind: int, feature: str = METADATA, **more: Any) -> dict[str, Any]:
    update = {"feature": feature, "max_version_level": level, "upgrade_type": kind, "allow_downgrade": kind > 1}
    return {"timeout": 1000, "feature_updates": [update], **more}


async def finalized(client: KafkaClient) -> dict[str, int]:
    answer = await client.ask("api_versions", 4, client_software_name="a", client_software_version="1")
    return {one.name: one.max_version_level for one in answer.finalized_features}


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_level_is_raised_and_lowered(tmp_path: Path, version: int) -> None:
    """Version 0 has a flag in the place of the type; the last has no result for each feature. Whoever is answered finds
    the level in ApiVersions."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        for level, kind in ((2, 1), (1, 2)):
            answer = await client.ask("update_features", version, **asked(level, kind))
            assert (answer.error_code, answer.error_message) == (ErrorCode.NONE, None)
            results = [(one.feature, one.error_code) for one in getattr(answer, "results", ())]
            assert results == ([(METADATA, ErrorCode.NONE)] if version < 2 else [])
            assert (await finalized(client))[METADATA] == level

    run(tmp_path, main)


@pytest.mark.parametrize("version", [1, 2])
def test_validate_only_and_refusals(tmp_path: Path, version: int) -> None:
    """An error is the error of the whole, with its sentence; nothing changes."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        before = await finalized(client)
        answer = await client.ask("update_features", version, **asked(2, 1, validate_only=True))
        assert answer.error_code == ErrorCode.NONE
        for request, code, words in (
            (asked(25, 1), ErrorCode.INVALID_UPDATE_VERSION, "build knows 1 to 3"),
            (asked(2, 9), ErrorCode.INVALID_REQUEST, "no upgrade type 9"),
            (asked(1, 1, "share.version"), ErrorCode.INVALID_UPDATE_VERSION, "there is no such feature"),
            ({"timeout": 1000, "feature_updates": []}, ErrorCode.INVALID_REQUEST, "at least one feature"),
        ):
            answer = await client.ask("update_features", version, **request)
            assert answer.error_code == code
            assert words in answer.error_message
        assert await finalized(client) == before

    run(tmp_path, main)
