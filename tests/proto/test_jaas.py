"""Kafka's JAAS line."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.proto.jaas import Jaas, parse_jaas


def test_a_module_and_its_options(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Quotes of both kinds or none, over several lines, with values that stand elsewhere."""
    monkeypatch.setenv("BOB", 'p"w;')
    line = """org.apache.kafka.common.security.plain.PlainLoginModule required
        username=admin password='it is; "me"'
        user_alice="a\\"b\\\\c" user_bob="${env:BOB}";"""
    options = {"username": "admin", "password": 'it is; "me"', "user_alice": 'a"b\\c', "user_bob": 'p"w;'}
    assert parse_jaas(line) == Jaas("PlainLoginModule", options)
    (tmp_path / "jaas").write_text(line)
    assert parse_jaas(f"${{dir:{tmp_path}:jaas}}").options == options
    assert parse_jaas("ScramLoginModule required;") == Jaas("ScramLoginModule", {})


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", "a line such as"),
        ("PlainLoginModule", "a line such as"),
        ('PlainLoginModule required username="a"', "a ; at the end"),
        ('PlainLoginModule required username="a;', "a ; at the end"),
        ('PlainLoginModule required username="a"; more', "a ; at the end"),
        ('PlainLoginModule required username="s3cret" username="b";', "username stands there twice"),
        ('PlainLoginModule required password="x${env:PW}";', "the whole value of password"),
        ('PlainLoginModule required password="${env:NO_SUCH_VARIABLE}";', "NO_SUCH_VARIABLE, which is not set"),
    ],
)
def test_what_is_none_is_refused_and_not_shown(line: str, words: str) -> None:
    with pytest.raises(ValueError, match=words) as refused:
        parse_jaas(line)
    assert "s3cret" not in str(refused.value)
