"""The suite judges clients; these judge the suite: hangs, crashes and differences must show."""

from __future__ import annotations

import sys
import time

import pytest
from interop.__main__ import show
from interop.clients import CLIENTS, Client
from interop.driver import ClientError, DriverGone, NotSupported, ProcessDriver, ToolDriver
from interop.features import FEATURES, Feature, murmur2
from interop.results import FAILED, NOT_SUPPORTED, OK, SKIPPED, Result, differences, run_client, run_feature
from interop.suite import World, refused

from interop import driver


def program(code: str) -> ProcessDriver:
    return ProcessDriver([sys.executable, "-c", code], {})


def test_a_driver_that_hangs_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounded in time: an answer that does not come is a failure of this feature, not of the run."""
    monkeypatch.setattr(driver, "START_TIMEOUT_S", 0.2)
    hanging = program("import time; time.sleep(60)")
    began = time.monotonic()
    with pytest.raises(DriverGone, match="no answer within"):
        hanging.call("hello")
    hanging.stop()
    assert time.monotonic() - began < 20


def test_a_driver_that_ends_leaves_its_last_words() -> None:
    ended = program("import sys; sys.exit('the client could not be loaded')")
    with pytest.raises(DriverGone, match="could not be loaded"):
        ended.call("hello")
    ended.stop()


def test_answers_of_drivers() -> None:
    """What a client prints on its own is passed over; errors and what it lacks are told apart."""
    lines = '{"ok": {"a": 1}}', '{"error": 3, "text": "t"}', '{"unsupported": "r"}'
    talking = program(
        f"import sys\nfor line in {lines!r}: sys.stdin.readline(); print('noise'); print(line, flush=True)"
    )
    assert talking.call("one") == {"a": 1}
    with pytest.raises(ClientError) as caught:
        talking.call("two")
    assert caught.value.code == 3
    with pytest.raises(NotSupported, match="r"):
        talking.call("three")
    talking.stop()


def test_a_missing_error_is_a_failure() -> None:
    """Each error that a client should see."""
    with refused(3):
        raise ClientError(3, "as it should be")
    with pytest.raises(AssertionError, match="no error instead of UNKNOWN_TOPIC_OR_PARTITION"), refused(3):
        pass
    with pytest.raises(AssertionError, match="instead of OFFSET_OUT_OF_RANGE"), refused(1):
        raise ClientError(3, "another")


def test_cells() -> None:
    """ok, FAILED with the reason, what the client lacks, and what the broker does not serve."""

    def wrong(world: World) -> None:
        raise AssertionError("another value came back")

    def lacking(world: World) -> None:
        world.client.call("anything")

    client = Client("none", lambda: lambda bootstrap, login: ToolDriver())
    features = [
        Feature("right", lambda world: None),
        Feature("wrong", wrong),
        Feature("lacking", lacking),
        Feature("not served", wrong, frozenset({68})),
    ]
    results = run_client("strandline", client, features, "127.0.0.1:1", frozenset({3}), lambda result: None)
    assert [each.outcome for each in results] == [OK, FAILED, NOT_SUPPORTED, SKIPPED]
    assert "another value came back" in results[1].reason
    late = run_feature(
        "strandline", client, features[3], World("127.0.0.1:1", frozenset({68}), lambda login: ToolDriver())
    )
    assert late.outcome == FAILED


def test_differences_between_clusters() -> None:
    """What was skipped on one side says nothing."""
    results = [
        Result("strandline", "a", "x", OK),
        Result("kafka", "a", "x", FAILED),
        Result("strandline", "a", "y", SKIPPED),
        Result("kafka", "a", "y", OK),
    ]
    assert differences(results) == ["a: x: strandline ok, kafka failed"]


@pytest.mark.parametrize(
    ("key", "hashed"),
    [(b"21", -973932308), (b"foobar", -790332482), (b"a-little-bit-long-string", -985981536), (b"abc", 479470107)],
)
def test_murmur2(key: bytes, hashed: int) -> None:
    """The yardstick of 'same key, same partition': values that Kafka's own tests name."""
    assert murmur2(key) == hashed & 0xFFFFFFFF


def test_every_feature_has_a_name_of_its_own() -> None:
    assert len({each.name for each in FEATURES}) == len(FEATURES)


def test_the_table_names_every_client_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    """However narrow the terminal is."""
    feature = max((each.name for each in FEATURES), key=len)
    show([Result("strandline", each.name, feature, OK, "", 1.0) for each in CLIENTS], "table")
    heading = next(line for line in capsys.readouterr().out.splitlines() if "feature" in line)
    assert [name.strip() for name in heading.strip("┃").split("┃")][1:] == [each.name for each in CLIENTS]
