"""Principals of certificates: subjects as Java writes them, mapping rules as Kafka reads them (KIP-371)."""

from __future__ import annotations

import pytest

from strandline.cluster.security.principal import PrincipalRules, subject_name
from strandline.proto.errors import ConfigError

ALICE = ((("countryName", "DE"),), (("organizationName", "Shop, Inc."),), (("commonName", "Alice"),))


def principal(rules: str, subject: object = ALICE) -> str | None:
    return PrincipalRules("ssl.principal.mapping.rules", rules).principal({"subject": subject})


def test_the_subject_is_written_as_java_writes_it() -> None:
    """RFC 2253: the last part first, short names, what separates parts escaped; what has no name there as a number."""
    assert subject_name(ALICE) == "CN=Alice,O=Shop\\, Inc.,C=DE"
    assert subject_name(((("emailAddress", "a@b.c"),), (("commonName", "#x "),))) == (
        "CN=\\#x\\ ,1.2.840.113549.1.9.1=#16056140622e63"
    )
    assert subject_name(((("commonName", "a"), ("userId", "b")),)) == "CN=a+UID=b"


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ("", "User:CN=Alice,O=Shop\\, Inc.,C=DE"),
        ("DEFAULT", "User:CN=Alice,O=Shop\\, Inc.,C=DE"),
        ("RULE:^CN=(.*?),O=.*$/$1/", "User:Alice"),
        ("RULE:^CN=(.*?),O=.*$/$1/L", "User:alice"),
        ("RULE:^CN=(.*?),O=.*$/$1@shop/U, DEFAULT", "User:ALICE@SHOP"),
        ("RULE:^CN=Bob.*$/bob/, RULE:^CN=(\\w+),.*C=(\\w+)$/$2\\/$1/", "User:DE/Alice"),
        ("RULE:^CN=Bob.*$/bob/,DEFAULT", "User:CN=Alice,O=Shop\\, Inc.,C=DE"),
        ("RULE:^CN=Bob.*$/bob/", None),
        ("RULE:CN=Alice/short/", None),  # the whole subject must match
    ],
)
def test_the_first_rule_that_matches_counts(rules: str, expected: str | None) -> None:
    assert principal(rules) == expected


@pytest.mark.parametrize("rules", ["alice", "RULE:a/b", "RULE:(/x/", "RULE:a/$1/", "DEFAULT DEFAULT", "RULE:a/b/X"])
def test_rules_that_cannot_be_are_refused(rules: str) -> None:
    with pytest.raises(ConfigError) as refused:
        principal(rules)
    assert refused.value.key == "ssl.principal.mapping.rules"


def test_a_name_without_bound_is_nobodys() -> None:
    assert principal("DEFAULT", ((("commonName", "x" * 5000),),)) is None
