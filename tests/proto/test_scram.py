"""SCRAM: the vectors of RFC 7677 and RFC 5802's exchange, and every message that is not one."""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64decode, b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.proto.scram import (
    MESSAGE_BYTES_MAX,
    SCRAM_BY_TITLE,
    SaltedPasswords,
    ScramClient,
    ScramCredential,
    ScramError,
    ScramMechanism,
    ScramServer,
    credential_of,
    salted_password,
)

SHA_256, SHA_512 = ScramMechanism.SHA_256, ScramMechanism.SHA_512

VECTORS = [
    (  # RFC 7677, section 3
        SHA_256,
        "rOprNGfwEbeRWgbNEkqO",
        "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0",
        "W22ZaJ0SNY7soEsUEjb6gQ==",
        "dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
        "6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
    ),
    (  # no RFC has one of SHA-512: as scramp 1.5.0 has it
        SHA_512,
        "rOprNGfwEbeRWgbNEkqO",
        "02431b08-2f0a-4bad-a4e6-80c0767ec865",
        "Yin2FuHTt/M0kJWb0t9OI32n2VmOGi3m+JfjOvuDF88=",
        "FB0hZzA/Dsl88OWQ8WTmtxPYJXe8J/BbC/VjaI9MST082p07JedwoUH1T/6XRL76v5ziFU1ibo5RiJ53ILEDdA==",
        "DMzAeWZlhcAS6ZxPElqR0JLdZIirNdc/EuQEUfngihdugFFkX7KrOOs3GQe2WhsF59ewXhGUYk6wzfMbK2fJfQ==",
    ),
]


@pytest.mark.parametrize(
    ("mechanism", "client_nonce", "server_nonce", "salt", "proof", "signature"), VECTORS, ids=["RFC 7677", "SHA-512"]
)
def test_both_ends_say_what_the_vectors_say(
    mechanism: ScramMechanism, client_nonce: str, server_nonce: str, salt: str, proof: str, signature: str
) -> None:
    client = ScramClient(mechanism, "user", SaltedPasswords("pencil"), client_nonce)
    server = ScramServer(mechanism, server_nonce)
    assert client.first() == f"n,,n=user,r={client_nonce}".encode()
    assert server.first(client.first()) == "user"
    raw = b64decode(salt)
    credential = credential_of(mechanism, salted_password(mechanism, "pencil", raw, 4096), raw, 4096)
    challenge = server.challenge(credential)
    assert challenge == f"r={client_nonce}{server_nonce},s={salt},i=4096".encode()
    final = client.final(challenge)
    assert final == f"c=biws,r={client_nonce}{server_nonce},p={proof}".encode()
    answer = server.final(final)
    assert answer == f"v={signature}".encode()
    client.verify(answer)


def known(password: str = "pencil", mechanism: ScramMechanism = SHA_256) -> ScramCredential:
    return credential_of(mechanism, salted_password(mechanism, password, b"salt", 4096), b"salt", 4096)


def begun(credential: ScramCredential | None = None, first: bytes = b"n,,n=user,r=abc") -> tuple[ScramServer, bytes]:
    server = ScramServer(SHA_256, "XYZ")
    server.first(first)
    return server, server.challenge(credential or known())


@given(name=st.text(min_size=1, max_size=40).filter(lambda text: "\0" not in text), password=st.text(max_size=40))
def test_any_name_and_password_pass(name: str, password: str) -> None:
    """Commas, equals signs and every alphabet: bytes as they are, as Kafka's clients write them."""
    client = ScramClient(SHA_256, name, SaltedPasswords(password), "abc")
    server = ScramServer(SHA_256, "XYZ")
    assert server.first(client.first()) == name
    client.verify(server.final(client.final(server.challenge(known(password)))))


def proven(server_first: bytes, nonce: bytes) -> bytes:
    """The final message of a client that writes this nonce."""
    without_proof = b"c=biws,r=" + nonce
    auth_message = b"n=user,r=abc," + server_first + b"," + without_proof
    client_key = hmac.digest(salted_password(SHA_256, "pencil", b"salt", 4096), b"Client Key", "sha256")
    signature = hmac.digest(hashlib.sha256(client_key).digest(), auth_message, "sha256")
    return without_proof + b",p=" + b64encode(bytes(a ^ b for a, b in zip(client_key, signature, strict=True)))


@pytest.mark.parametrize(
    ("nonce", "counts"),
    [(b"abcXYZ", True), (b"abcabcXYZ", True), (b"abcabcabcXYZ", False), (b"xabcXYZ", False), (b"abcabc", False)],
)
def test_the_clients_nonce_may_stand_twice(nonce: bytes, counts: bool) -> None:
    """As librdkafka before 2.6.1 writes it, kcat of Debian 12 among it. Nothing else may, however well it is proven."""
    server, challenge = begun()
    if counts:
        assert server.final(proven(challenge, nonce)).startswith(b"v=")
        return
    with pytest.raises(ScramError, match="the nonce changed"):
        server.final(proven(challenge, nonce))


def test_a_wrong_password_proves_nothing() -> None:
    server, challenge = begun()
    client = ScramClient(SHA_256, "user", SaltedPasswords("pen"), "abc")
    with pytest.raises(ScramError, match="the proof is wrong"):
        server.final(client.final(challenge))


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"n,,",
        b"p=tls-unique,,n=user,r=abc",
        b"n,,n=user",
        b"n,,r=abc,n=user",
        b"n,,m=ext,n=user,r=abc",
        b"n,,n=user,r=abc,tokenauth=true",
        b"n,,n=user,r=",
        b"n,,n=user,r=a\tb",
        b"n,,n=,r=abc",
        b"n,,n=us=er,r=abc",
        b"n,,n=us\0er,r=abc",
        b"n,a=root,n=user,r=abc",
        b"\xff\xfe",
        b"n,,n=" + b"u" * MESSAGE_BYTES_MAX + b",r=abc",
    ],
)
def test_a_first_message_that_is_none_is_refused(first: bytes) -> None:
    with pytest.raises(ScramError):
        ScramServer(SHA_256, "XYZ").first(first)


def test_who_acts_for_itself_may_say_so() -> None:
    assert ScramServer(SHA_256, "XYZ").first(b"y,a=us=2Cer,n=us=2Cer,r=abc") == "us,er"


PROOF = b64encode(bytes(32))


@pytest.mark.parametrize(
    ("final", "words"),
    [
        (b"", "is not c=, r= and p="),
        (b"c=biws,r=abcXYZ", "is not c=, r= and p="),
        (b"c=biws,r=abcXYZ,p=" + PROOF + b",x=1", "is not c=, r= and p="),
        (b"c=biws,r=abcXYZ,p=!!!", "no base64"),
        (b"c=biws,r=abcXYZ,p=" + b64encode(b"short"), "the proof is wrong"),
        (b"c=eSws,r=abcXYZ,p=" + PROOF, "the header changed"),
        (b"c=biws,r=abcXYz,p=" + PROOF, "the nonce changed"),
        (b"c=biws,r=abc,p=" + PROOF, "the nonce changed"),
        (b"c=biws,r=abcXYZ,p=" + PROOF, "the proof is wrong"),
        ("c=biws,r=abcXYZ\u00e9,p=".encode() + PROOF, "the nonce changed"),
        (b"\xff", "no UTF-8"),
    ],
)
def test_a_final_message_that_is_none_is_refused(final: bytes, words: str) -> None:
    server, _ = begun()
    with pytest.raises(ScramError, match=words):
        server.final(final)


def test_the_final_message_does_not_come_first() -> None:
    with pytest.raises(ScramError, match="came first"):
        ScramServer(SHA_256, "XYZ").final(b"c=biws,r=XYZ,p=" + PROOF)


@pytest.mark.parametrize(
    ("challenge", "words"),
    [
        (b"", "is not r=, s= and i="),
        (b"e=other-error", "is not r=, s= and i="),
        (b"r=abc,s=c2FsdA==,i=4096", "does not continue"),
        (b"r=evilXYZ,s=c2FsdA==,i=4096", "does not continue"),
        (b"r=abcXYZ,s=c2FsdA==,i=many", "no number"),
        (b"r=abcXYZ,s=c2FsdA==,i=1", "4096 to 1000000 are sound"),
        (b"r=abcXYZ,s=c2FsdA==,i=999999999", "4096 to 1000000 are sound"),
        (b"r=abcXYZ,s=*,i=4096", "no base64"),
    ],
)
def test_a_client_does_not_trust_any_server(challenge: bytes, words: str) -> None:
    """Least of all one that asks for few iterations, to guess the password by the proof, or for hours of them."""
    client = ScramClient(SHA_256, "user", SaltedPasswords("pencil"), "abc")
    with pytest.raises(ScramError, match=words):
        client.final(challenge)


@pytest.mark.parametrize("answer", [b"", b"v=", b"e=x", b"v=" + b64encode(bytes(32)), b"v=*"])
def test_a_server_that_does_not_know_the_credential_is_found_out(answer: bytes) -> None:
    client = ScramClient(SHA_256, "user", SaltedPasswords("pencil"), "abc")
    client.final(begun()[1])
    with pytest.raises(ScramError):
        client.verify(answer)


def test_nothing_of_a_password_is_in_a_repr() -> None:
    credential = known()
    assert "stored_key" not in repr(credential)
    assert set(SCRAM_BY_TITLE) == {"SCRAM-SHA-256", "SCRAM-SHA-512"}
    assert [len(known(mechanism=each).stored_key) for each in ScramMechanism] == [32, 64]
