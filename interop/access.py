"""The features of clusters that ask who comes in: what keeps a client out, rights that end, credentials that change."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from bench.clusters import admin_client

from interop import groups
from interop.driver import ClientError, Driver, NotSupported
from interop.logins import Login
from interop.security import SHA_256, Authority, Certificates, Passwords, Rights, sees
from interop.suite import UNKNOWN_TOPIC, World, eventually, same, send, values

TOPIC_REFUSED, GROUP_REFUSED, LOGIN_REFUSED = 29, 30, 58

SAYS_WHY = re.compile(r"authenti|sasl|ssl|tls|certificate|credential|password|token|handshake", re.I)
"""Words by which a user finds out that it is the login that is wrong."""

ADDRESS = re.compile(r"\b(sasl_)?ssl://\S+", re.I)

Made = Callable[[Authority, str], Login]


def authority(world: World) -> Authority:
    assert world.authority is not None
    return world.authority


def rights(world: World) -> Rights:
    return Rights(world.bootstrap, authority(world))


def end_of(world: World, topic: str) -> int:
    """How many records partition 0 holds, as librdkafka is told."""
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import OffsetSpec

    where = TopicPartition(topic, 0)
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    admin = admin_client(world.bootstrap)  # it must outlive its answer
    found: int = admin.list_offsets({where: latest})[where].result(30).offset
    return found


def user_with_rights(world: World, made: Made | None = None) -> tuple[str, str, str, Login]:
    """A new user, a topic and a group that he may use, and his login."""
    topic, group, name = world.topic(), world.name("group"), world.name("user")
    login = authority(world).user(name) if made is None else made(authority(world), name)
    rights(world).allow(name, topic, group, "DESCRIBE", "READ", "WRITE")
    eventually(lambda: sees(world.bootstrap, login, topic), pause_s=0.2)
    return name, topic, group, login


@contextmanager
def process(world: World, login: Login) -> Iterator[Driver]:
    """One more process of the client, which comes in by `login`, and ends with the block."""
    driver = world.another(login)
    try:
        yield driver
    finally:
        driver.stop()


def sends_and_reads(made: Made) -> Callable[[World], None]:
    """A login that is right lets in."""

    def check(world: World) -> None:
        _, topic, group, login = user_with_rights(world, made)
        with process(world, login) as client:
            send(client, topic, values(5))
            groups.join(client, group, topic)
            same([each["value"] for each in groups.read(client, 5)], [each["value"] for each in values(5)], "values")
            client.call("close")

    return check


def kept_out(made: Made) -> Callable[[World], None]:
    """Whoever shows this of a user with rights gets an error that says why, and his records are not there.

    A client that is refused and does not say why lacks just that.
    """

    def check(world: World) -> None:
        name, topic, _, _ = user_with_rights(world)
        why = ""
        with process(world, made(authority(world), name)) as client:
            try:
                send(client, topic, values(1))
            except ClientError as error:
                why = "by its code: SASL" if error.code == LOGIN_REFUSED else ADDRESS.sub("", str(error))
            else:
                raise AssertionError("it came in")
        same(end_of(world, topic), 0, "records")
        if not SAYS_WHY.search(why):
            raise NotSupported(f"is refused, and does not say why: {why.partition('[')[0].strip()}")

    return check


def without_rights(world: World) -> None:
    """A user whom no ACL names may not write, and not read."""
    topic = world.topic()
    world.produce(topic, values(3))
    with process(world, authority(world).user(world.name("user"))) as client:
        try:
            send(client, topic, values(1))
            raise AssertionError("a record of a user without rights was taken")
        except ClientError as error:
            same(end_of(world, topic), 3, "records")
            if error.code == UNKNOWN_TOPIC:
                raise NotSupported("asks for all topics, and is told of none that it may not see") from error
            assert error.code == TOPIC_REFUSED, f"{error} instead of TOPIC_AUTHORIZATION_FAILED"
        try:
            found = client.call("fetch", topic=topic, partition=0, offset=0, count=1, timeout_ms=8_000)["records"]
            same(found, [], "records")  # aiokafka says nothing
        except NotSupported:
            pass
        except ClientError as error:  # kafkajs reads as a group alone
            hidden = (TOPIC_REFUSED, GROUP_REFUSED, UNKNOWN_TOPIC)  # Kafka's tools list what they may see
            assert error.code in hidden, str(error)
    same(end_of(world, topic), 3, "records")


def revoked_producer(world: World) -> None:
    """A producer under way is refused once its right is taken, and nothing of what was refused is there."""
    name, topic, _, login = user_with_rights(world)
    with process(world, login) as client:
        send(client, topic, values(5), kept=True)
        rights(world).revoke(name, topic, "WRITE")
        sent = 5

        def is_refused() -> bool:
            nonlocal sent
            try:
                send(client, topic, values(1), kept=True)
            except ClientError as error:
                same(error.code, TOPIC_REFUSED, f"error ({error})")
                return True
            sent += 1
            return False

        eventually(is_refused)
        assert is_refused(), "it was let in again"
        same(end_of(world, topic), sent, "records")


def revoked_consumer(world: World) -> None:
    """A consumer under way is refused once its right is taken, and is handed no record that came afterwards."""
    name, topic, group, login = user_with_rights(world)
    world.produce(topic, values(5))
    with process(world, login) as client:
        groups.join(client, group, topic)
        groups.read(client, 5)
        rights(world).revoke(name, topic, "READ")

        def is_refused() -> bool:
            client.begin("poll", timeout_ms=500, count=2)  # not with a tool, which ends with each command
            try:
                found = client.finish()["records"]
            except ClientError as error:
                assert error.code in (TOPIC_REFUSED, GROUP_REFUSED), str(error)
                return True
            same(found, [], "records")
            return False

        eventually(is_refused)
        world.produce(topic, values(5, "secret"))
        is_refused()


def renewed_under_way(world: World) -> None:
    """A client that runs goes on with the login that it has come in by."""
    name, topic, group, login = user_with_rights(world)
    with process(world, login) as client:
        send(client, topic, values(5), kept=True)
        groups.join(client, group, topic)
        groups.read(client, 5)
        client.call("commit")
        new = authority(world).renewed(name)
        eventually(lambda: sees(world.bootstrap, new, topic), pause_s=0.2)
        send(client, topic, values(5, "more"), kept=True)
        found = [each["value"] for each in groups.read(client, 5)]
        same(found, [each["value"] for each in values(5, "more")], "values after the change")
        client.call("commit")
        client.call("close")


def renewed_restarted(world: World) -> None:
    """A client that is restarted with the new login goes on behind what it committed: no record lost, none twice."""
    name, topic, group, old = user_with_rights(world)
    with process(world, old) as client:
        send(client, topic, values(10))
        groups.join(client, group, topic)
        groups.read(client, 10)
        client.call("commit")
        send(client, topic, values(5, "meanwhile"))
        client.call("close")
    new = authority(world).renewed(name)
    eventually(lambda: sees(world.bootstrap, new, topic), pause_s=0.2)
    if not isinstance(authority(world), Certificates):  # an older certificate holds until its end
        assert not sees(world.bootstrap, old, topic), "what was shown before still counts"
    with process(world, new) as client:
        send(client, topic, values(5, "new"))
        groups.join(client, group, topic)
        found = [each["value"] for each in groups.read(client, 10)]
        expected = [each["value"] for each in (*values(5, "meanwhile"), *values(5, "new"))]
        same(found, expected, "values after the restart")
        client.call("close")


def by_sha_256(authority: Authority, name: str) -> Login:
    assert isinstance(authority, Passwords)
    return authority.user(name, SHA_256)


def without_certificate(authority: Authority, name: str) -> Login:
    assert isinstance(authority, Certificates), name
    return authority.nothing()


def wrong(authority: Authority, name: str) -> Login:
    return authority.wrong(name)


def expired(authority: Authority, name: str) -> Login:
    return authority.expired(name)


KEPT_OUT: dict[str, dict[str, Callable[[World], None]]] = {
    "sasl": {"login by SCRAM-SHA-256": sends_and_reads(by_sha_256), "a wrong password": kept_out(wrong)},
    "oauth": {"a forged token": kept_out(wrong), "an expired token": kept_out(expired)},
    "mtls": {
        "no certificate": kept_out(without_certificate),
        "a certificate of another CA": kept_out(wrong),
        "an expired certificate": kept_out(expired),
    },
}
RENEWED = {"sasl": "new password", "oauth": "new signing key", "mtls": "new certificate"}


def checks(level: str) -> dict[str, Callable[[World], None]]:
    """The features of this level of security, by their names."""
    return {
        **KEPT_OUT[level],
        "a user without rights": without_rights,
        "revoked while it produces": revoked_producer,
        "revoked while it consumes": revoked_consumer,
        f"{RENEWED[level]}, the client goes on": renewed_under_way,
        f"{RENEWED[level]}, restarted, none lost": renewed_restarted,
    }
