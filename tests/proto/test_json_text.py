"""JSON of strangers: deep brackets end nothing but themselves."""

from __future__ import annotations

import pytest

from strandline.cluster.node.config_values import parse_toml
from strandline.cluster.security.tokens import parse_keys
from strandline.lake.commits import Commit
from strandline.proto.audit import read_audit_line
from strandline.proto.errors import ConfigError
from strandline.proto.json_text import read_json

DEEP = "[" * 100_000


@pytest.mark.parametrize("text", [DEEP, DEEP.encode(), '{"a":' * 100_000, "[" * 990 + "]" * 989, "", "nan,", b"\xff"])
def test_what_is_no_json_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  # whatever its words
        read_json(text)


def test_what_is_json_is_its_value() -> None:
    assert read_json(b'{"a": [1, 2.5, null]}') == {"a": [1, 2.5, None]}


def test_readers_of_nested_formats_say_that_it_is_none() -> None:
    """A line of an audit, keys of an issuer, a commit of a lake, a configuration."""
    with pytest.raises(ValueError, match="nested too deeply"):
        read_audit_line(DEEP.encode())
    with pytest.raises(ValueError, match="JWKS document"):
        parse_keys(f'{{"keys": {DEEP}')
    with pytest.raises(ValueError, match="nested too deeply"):
        Commit.from_json(DEEP.encode())
    with pytest.raises(ConfigError, match="--config"):
        parse_toml(f"a = {DEEP}")
