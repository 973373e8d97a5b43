"""Mutants of rules A42 and A43: what clients tell of themselves has bounds."""

from __future__ import annotations

from lab.mutants.mutant import Mutant, instead, never, one_change, part

_TELEMETRY = "tests/cluster/broker/test_client_telemetry.py"

TABLE: tuple[Mutant, ...] = (
    one_change(
        "clients-without-a-subscription-are-kept",
        "A42: of a client of which nothing is asked nothing is kept",
        instead("pass"),
        f"{_TELEMETRY}::test_nobody_is_asked_for_anything_until_somebody_subscribes",
    ),
    one_change(
        "a-clients-metrics-without-bound",
        "A42: so many metrics of a client are kept, under plain names",
        never(),
        f"{_TELEMETRY}::test_what_is_kept_of_a_client_has_a_bound",
    ),
    one_change(
        "telemetry-unpacks-without-bound",
        "A42: a push is bounded unpacked, too",
        part("TELEMETRY_BYTES_MAX", "1 << 40"),
        f"{_TELEMETRY}::test_every_codec_is_taken_and_none_unpacks_without_bound[ZSTD]",
    ),
    one_change(
        "one-payers-instances-drive-out-others",
        "A42: who has most instances makes room for new ones",
        part("max(self._of_payer.values(), key=len)", "min(self._of_payer.values(), key=len)"),
        f"{_TELEMETRY}::test_one_payer_makes_no_other_forgotten",
    ),
    one_change(
        "pushes-as-often-as-a-client-likes",
        "A43: a client pushes as often as it was asked to",
        never(),
        f"{_TELEMETRY}::test_pushes_come_as_often_as_was_asked_for",
    ),
    one_change(
        "client-metrics-without-bound",
        "A43: the page of metrics shows so many of clients",
        part("islice(sorted(greatest), SERIES_MAX)", "sorted(greatest)"),
        f"{_TELEMETRY}::test_the_page_of_metrics_has_a_bound",
    ),
    one_change(
        "subscriptions-of-a-level-that-is-not-finalized",
        "A42: clients are asked for nothing below metadata.version 3",
        never(),
        "tests/controller/machine/test_client_metrics.py::test_below_its_level_nothing_is_subscribed_to",
    ),
)
