"""Mutants of rule A21: what is above a quota waits, and nobody else does."""

from __future__ import annotations

from lab.mutants.mutant import Mutant, one_change

_RATES = "tests/cluster/broker/quotas/test_rates.py"
_LIMITS = "tests/cluster/broker/quotas/test_limits.py"
_WIRE = "tests/cluster/broker/test_kafka_quotas.py"
_MACHINE = "tests/controller/machine/test_quotas.py"
_CLIENT = "tests/client/test_connection.py"

TABLE: tuple[Mutant, ...] = (
    one_change(
        "a-first-record-is-a-burst",
        "A21: a rate is over all windows, also when the first has just begun",
        "cluster.broker.quotas.windows:Rate.span_ms",
        "max(missing, 0) * shape.size_ms",
        "0",
        f"{_RATES}::test_the_rate_is_kafkas",
        f"{_RATES}::test_the_wait_is_what_brings_the_rate_back",
    ),
    one_change(
        "windows-are-never-forgotten",
        "A21: what was taken long ago does not count",
        "cluster.broker.quotas.windows:Rate._forget",
        "now_ms - windows[0].last_ms >= shape.memory_ms",
        "False",
        f"{_RATES}::test_the_rate_is_kafkas",
    ),
    one_change(
        "all-users-share-a-default",
        "A21: a default gives each user a share of its own",
        "cluster.broker.quotas.limits:_candidates",
        "yield QuotaEntity(DEFAULT), user_alone",
        "yield QuotaEntity(DEFAULT), QuotaEntity(DEFAULT)",
        f"{_LIMITS}::test_the_most_specific_counts_for_every_set_of_quotas",
        f"{_RATES}::test_the_wait_is_what_brings_the_rate_back",
    ),
    one_change(
        "a-users-own-quota-is-passed-over",
        "A21: the most specific quota counts, in Kafka's order",
        "cluster.broker.quotas.limits:_candidates",
        "    if user:\n        yield user_alone, user_alone\n",
        "",
        f"{_LIMITS}::test_the_most_specific_counts_for_every_set_of_quotas",
    ),
    one_change(
        "rates-without-number",
        "A21: a client of many names takes bounded memory",
        "cluster.broker.quotas.rate_quota:RateQuota._rate",
        "if len(self._rates) > SHARES_MAX:",
        "if False:",
        f"{_RATES}::test_a_client_with_another_name_each_time_takes_no_unbounded_memory",
    ),
    one_change(
        "idle-shares-stay",
        "A21: a share that nobody used for as long as windows are remembered is forgotten",
        "cluster.broker.quotas.rate_quota:RateQuota._forget_idle",
        "if now_ms - self._rates[of][1] < self._shape.memory_ms:",
        "if True:",
        f"{_RATES}::test_a_client_with_another_name_each_time_takes_no_unbounded_memory",
    ),
    one_change(
        "the-throttled-are-read-on",
        "A21: a connection that is to wait is not read",
        "cluster.broker.connection:KafkaConnection._must_wait",
        "or self._held > 0",
        "or False",
        f"{_WIRE}::test_a_produce_above_the_quota_is_answered_at_once_and_mutes_its_connection",
    ),
    one_change(
        "a-mute-is-for-ever",
        "A21: a wait ends",
        "cluster.broker.quotas.muting:Mutes.end_all",
        "self._end(connection)",
        "pass",
        f"{_WIRE}::test_a_fetch_above_the_quota_is_answered_with_nothing",
    ),
    one_change(
        "what-is-on-its-way-is-free",
        "A21: a produce request mutes when it has come, not when it is answered",
        "cluster.broker.quotas.client_quotas:MeteredExchange.__init__",
        "self._mute(produced.record(*self._client, frame_bytes, now_ms), now_ms)",
        "produced.record(*self._client, frame_bytes, now_ms)",
        f"{_WIRE}::test_requests_that_are_on_their_way_do_not_slip_through",
    ),
    one_change(
        "fetches-above-the-quota-are-sent",
        "A21: a fetch above the quota brings nothing",
        "cluster.broker.quotas.rate_quota:RateQuota._record",
        "if takes_back and not was_idle:",
        "if False:",
        f"{_WIRE}::test_a_fetch_above_the_quota_is_answered_with_nothing",
        f"{_RATES}::test_what_is_taken_back_was_not_taken",
    ),
    one_change(
        "large-batches-are-never-had",
        "A21: what is larger than a quota is had all the same, and waited for",
        "cluster.broker.quotas.rate_quota:RateQuota._record",
        "if takes_back and not was_idle:",
        "if takes_back:",
        f"{_WIRE}::test_a_batch_that_is_larger_than_the_quota_can_be_read",
    ),
    one_change(
        "throttled-sessions-begin",
        "A21: a fetch session that would begin with a throttled answer does not begin",
        "cluster.broker.handlers.fetch:FetchHandler._respond_without",
        "self.sessions.drop(opened.session)",
        "session_id = opened.session.session_id",
        f"{_WIRE}::test_a_session_goes_on_after_a_fetch_above_the_quota",
    ),
    one_change(
        "answers-say-nothing-of-quotas",
        "A21: an answer says how long to wait",
        "cluster.broker.api:_SchemaApi._respond",
        "throttle_ms = exchange.throttle_ms()",
        "throttle_ms = exchange.throttle_ms() * 0",
        f"{_WIRE}::test_every_answer_that_has_the_field_says_how_long_to_wait",
    ),
    one_change(
        "coroutines-take-no-time",
        "A21: the time of a request that is answered later counts",
        "cluster.broker.quotas.client_quotas:MeteredExchange.timed",
        "return _Timed(work, self)",
        "return work",
        f"{_WIRE}::test_the_time_of_a_request_that_is_answered_later_counts",
    ),
    one_change(
        "snapshot-without-quotas",
        "A21: quotas are kept in snapshots",
        "controller.metadata.snapshot:image_records",
        "records.extend(quota_records(image.quotas))",
        "pass",
        f"{_MACHINE}::test_a_snapshot_keeps_every_quota",
    ),
    one_change(
        "damaged-quotas-are-replayed",
        "A21: a quota that nobody can have written stops the replay",
        "controller.metadata.quotas:_value",
        "if fault or repr(value) != text:",
        "if False:",
        f"{_MACHINE}::test_damaged_quotas_stop_the_replay",
    ),
    one_change(
        "quotas-without-number",
        "A21: the quotas of a cluster are bounded in number",
        "controller.machine.quotas:alter_client_quotas",
        "if is_new and len(known) + added >= QUOTAS_MAX:",
        "if False:",
        f"{_MACHINE}::test_quotas_are_bounded_in_number",
    ),
    one_change(
        "our-client-sends-on",
        "A21: our client sends nothing to a broker that told it to wait",
        "client.connection:Connection.throttle",
        "if throttle_ms <= 0:",
        "if True:",
        f"{_CLIENT}::test_a_client_that_is_throttled_waits_and_loses_nothing",
    ),
)
