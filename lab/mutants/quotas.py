"""Mutants of rule A21: what is above a quota waits, and nobody else does."""

from __future__ import annotations

from lab.mutants.mutant import Mutant, always, dropped, instead, never, one_change, part, removed, value

_RATES = "tests/cluster/broker/quotas/test_rates.py"
_LIMITS = "tests/cluster/broker/quotas/test_limits.py"
_WIRE = "tests/cluster/broker/test_kafka_quotas.py"
_CONNECTIONS = "tests/cluster/broker/test_kafka_connection_limits.py"
_TOKENS = "tests/cluster/broker/quotas/test_token_quota.py"
_MUTATIONS = "tests/cluster/broker/test_kafka_mutation_quotas.py"
_ARRIVALS = "tests/cluster/broker/test_kafka_connection_rates.py"
_MACHINE = "tests/controller/machine/test_quotas.py"
_CLIENT = "tests/client/test_connection.py"
_SECURED = "seed:cluster:8"
_THROTTLE = "tests/replica/test_throttle.py"
_HTTP = "tests/cluster/node/http/test_http.py"

TABLE: tuple[Mutant, ...] = (
    one_change(
        "http-connections-without-number",
        "A21: connections of HTTP are bounded, and who comes is heard",
        never(),
        f"{_HTTP}::test_connections_are_bounded_and_who_comes_is_heard",
    ),
    one_change(
        "half-requests-live-on",
        "A21: a request of HTTP has its time from its first byte on",
        dropped("not self._asking"),
        f"{_HTTP}::test_a_request_that_drips_is_ended",
    ),
    one_change(
        "readers-that-take-nothing-live-on",
        "A21: an answer of HTTP has its time",
        part("self.abort", "self.close"),
        f"{_HTTP}::test_who_takes_no_answer_is_ended",
    ),
    one_change(
        "deep-json-is-no-value-error",
        "A21: nested JSON of a stranger ends nothing but its reading",
        value("KeyError"),
        "tests/proto/test_json_text.py",
    ),
    one_change(
        "a-first-record-is-a-burst",
        "A21: a rate is over all windows, also when the first has just begun",
        part("max(missing, 0) * self._shape.size_ms", "0"),
        f"{_RATES}::test_the_rate_is_kafkas",
        f"{_RATES}::test_the_wait_is_what_brings_the_rate_back",
    ),
    one_change(
        "each-connection-has-one-more-request",
        "A21: above request_percentage all connections of a share wait",
        always(),
        f"{_WIRE}::test_a_share_waits_on_all_of_its_connections",
    ),
    one_change(
        "windows-are-never-forgotten",
        "A21: what was taken long ago does not count",
        part("now_ms - windows[0].last_ms >= self._shape.memory_ms", "False"),
        f"{_RATES}::test_the_rate_is_kafkas",
    ),
    one_change(
        "all-users-share-a-default",
        "A21: a default gives each user a share of its own",
        part("user_alone", "QuotaEntity(DEFAULT)"),
        f"{_LIMITS}::test_the_most_specific_counts_for_every_set_of_quotas",
        f"{_RATES}::test_the_wait_is_what_brings_the_rate_back",
    ),
    one_change(
        "a-users-own-quota-is-passed-over",
        "A21: the most specific quota counts, in Kafka's order",
        removed(),
        f"{_LIMITS}::test_the_most_specific_counts_for_every_set_of_quotas",
    ),
    one_change(
        "rates-without-number",
        "A21: a client of many names takes bounded memory",
        never(),
        f"{_RATES}::test_a_client_with_another_name_each_time_takes_no_unbounded_memory",
    ),
    one_change(
        "idle-shares-stay",
        "A21: a share that nobody used for as long as windows are remembered is forgotten",
        always(),
        f"{_RATES}::test_a_client_with_another_name_each_time_takes_no_unbounded_memory",
    ),
    one_change(
        "names-of-any-length-are-remembered",
        "A21: what is remembered of a client's name is bounded",
        part("client_id[:NAME_CHARS_MAX]", "client_id"),
        f"{_WIRE}::test_of_a_long_client_id_little_is_remembered",
    ),
    one_change(
        "the-throttled-are-read-on",
        "A21: a connection that is to wait is not read",
        part("self._held > 0", "False"),
        f"{_WIRE}::test_a_produce_above_the_quota_is_answered_at_once_and_mutes_its_connection",
    ),
    one_change(
        "a-mute-is-for-ever",
        "A21: a wait ends",
        removed(),
        f"{_WIRE}::test_a_fetch_above_the_quota_is_answered_with_nothing",
    ),
    one_change(
        "what-is-on-its-way-is-free",
        "A21: a produce request mutes when it has come, not when it is answered",
        part(
            "self._mute(produced.record(*self._client, frame_bytes, now_ms), now_ms)",
            "produced.record(*self._client, frame_bytes, now_ms)",
        ),
        f"{_WIRE}::test_requests_that_are_on_their_way_do_not_slip_through",
    ),
    one_change(
        "fetches-above-the-quota-are-sent",
        "A21: a fetch above the quota brings nothing",
        never(),
        f"{_WIRE}::test_a_fetch_above_the_quota_is_answered_with_nothing",
        f"{_RATES}::test_what_is_taken_back_was_not_taken",
    ),
    one_change(
        "large-batches-are-never-had",
        "A21: what is larger than a quota is had all the same, and waited for",
        dropped("not was_idle"),
        f"{_WIRE}::test_a_batch_that_is_larger_than_the_quota_can_be_read",
    ),
    one_change(
        "throttled-sessions-begin",
        "A21: a fetch session that would begin with a throttled answer does not begin",
        instead("session_id = opened.session.session_id"),
        f"{_WIRE}::test_a_session_goes_on_after_a_fetch_above_the_quota",
    ),
    one_change(
        "answers-say-nothing-of-quotas",
        "A21: an answer says how long to wait",
        value("... * 0"),
        f"{_WIRE}::test_every_answer_that_has_the_field_says_how_long_to_wait",
    ),
    one_change(
        "coroutines-take-no-time",
        "A21: the time of a request that is answered later counts",
        part("_Timed(work, self)", "work"),
        f"{_WIRE}::test_the_time_of_a_request_that_is_answered_later_counts",
    ),
    one_change(
        "snapshot-without-quotas",
        "A21: quotas are kept in snapshots",
        instead("if row.of.name != 'quotas':\n    ..."),
        f"{_MACHINE}::test_a_snapshot_keeps_every_quota",
        _SECURED,
    ),
    one_change(
        "damaged-quotas-are-replayed",
        "A21: a quota that nobody can have written stops the replay",
        never(),
        f"{_MACHINE}::test_damaged_quotas_stop_the_replay",
    ),
    one_change(
        "quotas-without-number",
        "A21: the quotas of a cluster are bounded in number",
        never(),
        f"{_MACHINE}::test_quotas_are_bounded_in_number",
    ),
    one_change(
        "our-client-sends-on",
        "A21: our client sends nothing to a broker that told it to wait",
        always(),
        f"{_CLIENT}::test_a_client_that_is_throttled_waits_and_loses_nothing",
    ),
    one_change(
        "debts-are-forgotten",
        "A21: a share that owes is remembered until it owes no more",
        dropped("self.bucket.is_full(now_ms)"),
        f"{_TOKENS}::test_who_owes_is_remembered_until_it_owes_no_more",
    ),
    one_change(
        "topics-above-the-quota-are-made",
        "A21: a change of the metadata above the quota is refused",
        never(),
        f"{_MUTATIONS}::test_a_topic_above_the_quota_is_refused_and_is_not_made",
        f"{_TOKENS}::test_a_strict_charge_admits_nothing_while_the_client_owes",
    ),
    one_change(
        "older-versions-are-refused",
        "A21: a client that does not know the error waits, and all that it asked for is done",
        value("True"),
        f"{_MUTATIONS}::test_each_version_is_told_as_it_understands",
    ),
    one_change(
        "older-versions-slip-through",
        "A21: changes behind one whose client does not know the error wait until it is done",
        part(
            "self._quotas.mutation_limits.share(*self._client) is not None",
            "self._quotas.mutation_limits.share(*self._client) is False",
        ),
        f"{_MUTATIONS}::test_requests_of_an_older_version_on_their_way_do_not_slip_through",
    ),
    one_change(
        "what-failed-is-paid-for",
        "A21: a change of the metadata that was not made costs nothing",
        removed(),
        f"{_MUTATIONS}::test_what_is_not_done_costs_nothing",
    ),
    one_change(
        "timeouts-are-free",
        "A21: what timed out is paid for: it may have been done",
        dropped("ErrorCode.REQUEST_TIMED_OUT"),
        f"{_MUTATIONS}::test_what_timed_out_is_paid_for",
    ),
    one_change(
        "first-uses-are-free",
        "A21: topics that are made by their first use count",
        part("charge.admits(partitions)", "True"),
        f"{_MUTATIONS}::test_topics_that_are_made_by_their_first_use_count",
    ),
    one_change(
        "connections-above-the-rate-are-let-in",
        "A21: a connection above the rate of its address waits",
        always(),
        f"{_ARRIVALS}::test_connections_above_the_rate_wait_for_their_slots_and_are_served",
        f"{_ARRIVALS}::test_a_default_gives_each_address_its_own_rate",
    ),
    one_change(
        "connections-wait-without-number",
        "A21: connections that wait are bounded in number",
        never(),
        f"{_ARRIVALS}::test_those_that_wait_are_bounded_in_number",
    ),
    one_change(
        "waiting-connections-are-read",
        "A21: of a connection that waits to be let in nothing is read",
        removed(),
        f"{_ARRIVALS}::test_of_a_connection_that_waits_nothing_is_read",
    ),
    one_change(
        "any-key-for-anybody",
        "A21: an ip has connection_creation_rate alone, and nothing else has it",
        value("tuple(QuotaKey)"),
        f"{_MACHINE}::test_an_ip_has_one_key_of_whole_numbers",
        f"{_MACHINE}::test_damaged_quotas_stop_the_replay",
    ),
    one_change(
        "connections-of-an-address-without-number",
        "A21: an address has no more connections than it may",
        part("host", "False"),
        f"{_CONNECTIONS}::test_one_connection_too_many_is_closed_and_the_others_stay",
        f"{_CONNECTIONS}::test_addresses_count_for_themselves_however_they_are_written",
    ),
    one_change(
        "closed-connections-count-on",
        "A21: a connection that has gone makes room for another",
        removed(),
        f"{_CONNECTIONS}::test_one_connection_too_many_is_closed_and_the_others_stay",
    ),
    one_change(
        "the-leaders-rate-holds-nobody",
        "A21: a throttled replica is sent no more than the leader's rate",
        always(),
        f"{_THROTTLE}::test_a_replica_out_of_the_isr_catches_up_at_the_rate_and_nobody_waits_for_it[leader]",
    ),
    one_change(
        "the-followers-rate-holds-nobody",
        "A21: a throttled replica fetches no more than the follower's rate, and what was on its way",
        part("following.is_throttled", "False"),
        f"{_THROTTLE}::test_a_replica_out_of_the_isr_catches_up_at_the_rate_and_nobody_waits_for_it[follower]",
    ),
    Mutant(
        "the-isr-is-throttled",
        "A21: a replica in the ISR is never throttled",
        (
            dropped("follower.in_maximal_isr"),
            value("True"),
        ),
        (f"{_THROTTLE}::test_what_is_owed_for_long_holds_up_neither_the_isr_nor_an_operator[leader-list]",),
    ),
    one_change(
        "who-is-about-to-join-is-throttled",
        "A21: no commit waits for a replication quota",
        value("True"),
        f"{_THROTTLE}::test_who_is_about_to_join_is_not_throttled",
    ),
    one_change(
        "what-is-on-its-way-is-dropped",
        "A21: what the leader had sent when a follower's quota was used up is kept",
        removed(),
        f"{_THROTTLE}::test_a_replica_out_of_the_isr_catches_up_at_the_rate_and_nobody_waits_for_it[follower]",
    ),
    one_change(
        "what-follows-a-batch-that-is-not-whole-is-tried",
        "A21: behind a batch that does not come whole nothing is taken of what was on its way",
        instead("return"),
        f"{_THROTTLE}::test_a_batch_in_pieces_comes_whole_and_holds_up_no_other[follower]",
    ),
    one_change(
        "one-throttled-partition-takes-it-all",
        "A21: throttled partitions have their turns",
        removed(),
        f"{_THROTTLE}::test_of_many_throttled_partitions_none_is_left_behind[follower]",
    ),
    one_change(
        "a-raised-rate-wakes-nobody",
        "A21: another rate of replication counts at once, for those that wait as well",
        removed(),
        f"{_THROTTLE}::test_what_is_owed_for_long_holds_up_neither_the_isr_nor_an_operator[leader-rate]",
    ),
)
