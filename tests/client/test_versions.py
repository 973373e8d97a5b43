"""Which version of an API a connection speaks."""

from __future__ import annotations

import pytest

from strandline.client.network import SUPPORTED, VersionRange, choose_version
from strandline.proto.errors import KafkaError
from strandline.proto.kafka.apis import Api


def test_versions_are_chosen_from_what_both_speak() -> None:
    """KIP-35: the highest common one; none is an error with both ranges."""
    assert choose_version(Api.FETCH, VersionRange(4, 99), "b") == SUPPORTED[Api.FETCH].high
    assert choose_version(Api.FETCH, VersionRange(0, 11), "b") == 11
    assert choose_version(Api.FETCH, VersionRange(4, 99), "b", at_most=12) == 12
    for offered in (None, VersionRange(0, 2), VersionRange(50, 60)):
        with pytest.raises(KafkaError, match="UNSUPPORTED_VERSION"):
            choose_version(Api.FETCH, offered, "b")
