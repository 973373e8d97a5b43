"""Mutants of the rules A20, A28, A31: the authorizer is asked for everything and decides as in Kafka; the audit."""

from __future__ import annotations

from lab.mutants.mutant import Mutant, condition, dropped, instead, never, one_change, part, removed, value

_RULES = "tests/cluster/security/test_acl_rules.py"
_WALK = "tests/cluster/broker/test_acl_walk.py"
_WIRE = "tests/cluster/broker/test_acls_wire.py"
_NOTHING = f"{_WALK}::test_a_principal_with_nothing_learns_and_changes_nothing"
_AUDIT = "tests/cluster/broker/test_audit.py"
_TOPIC = "tests/cluster/node/test_audit_topic.py"
_FILE = "tests/cluster/node/test_audit_file.py"
_TAIL = "tests/cli/test_audit_tail.py"
_MACHINE = "tests/controller/machine/test_acls.py"
_RIGHTS = "tests/cluster/node/test_missing_rights.py"
_SECURED = "seed:cluster:8"

TABLE: tuple[Mutant, ...] = (
    one_change(
        "an-allow-outdoes-a-deny",
        "A20: a DENY forbids however many ALLOWs fit",
        condition("... and allowing is None"),
        f"{_RULES}::test_a_deny_wins_however_narrow_the_allow",
        f"{_RULES}::test_the_index_decides_as_the_oracle",
    ),
    one_change(
        "a-deny-implies-too",
        "A20: a DENY of READ does not forbid DESCRIBE",
        never(),
        f"{_RULES}::test_an_allow_implies_describe_and_a_deny_does_not",
    ),
    one_change(
        "others-acls-name-nothing",
        "A20: a resource that any ACL names is not everybody's",
        instead("named = any(_of(section, asker))\n..."),
        f"{_RULES}::test_nothing_is_allowed_that_no_entry_allows",
    ),
    one_change(
        "everybody-is-allowed",
        "A20: what no entry allows is forbidden",
        value("True"),
        _NOTHING,
        _SECURED,
    ),
    one_change(
        "answers-outlive-the-acls",
        "A20: what was decided is forgotten when an ACL changes",
        removed(),
        f"{_WIRE}::test_rights_given_and_taken_count_at_once",
    ),
    one_change(
        "one-principals-answer-for-all",
        "A20: an answer is remembered for one principal",
        part("principal", "'User:ANONYMOUS'"),
        f"{_WIRE}::test_another_principal_has_rights_of_its_own",
    ),
    one_change(
        "a-broker-behind-allows",
        "A20: a broker that has not caught up allows nothing",
        never(),
        f"{_WIRE}::test_a_broker_that_has_not_caught_up_allows_nothing",
    ),
    one_change(
        "parked-fetch-keeps-its-right",
        "A20: a fetch that has waited is asked about again",
        never(),
        f"{_WIRE}::test_a_fetch_that_waits_gets_nothing_once_the_right_is_taken",
    ),
    one_change(
        "unknown-before-forbidden",
        "A20: by name a topic is asked about before it is looked for",
        part("name is None", "... or isinstance(found, ErrorCode)"),
        _NOTHING,
    ),
    one_change(
        "ids-tell-that-a-topic-exists",
        "A20: an id tells nothing to a principal that may not describe the topic",
        part("ErrorCode.UNKNOWN_TOPIC_ID", "ErrorCode.TOPIC_AUTHORIZATION_FAILED"),
        _NOTHING,
        f"{_WIRE}::test_topics_are_deleted_by_id_only_with_the_right",
    ),
    one_change(
        "groups-are-listed-to-all",
        "A20: a list leaves out what may not be described",
        part(
            "[one for one, answer in zip(listed, answers, strict=True) if answer]",
            "[one for one, answer in zip(listed, answers, strict=True)]",
        ),
        _NOTHING,
    ),
    one_change(
        "patterns-show-every-topic",
        "A20: a member is told only of topics that it may describe",
        part("topic_id not in known", "True"),
        f"{_WIRE}::test_a_pattern_shows_no_topic_that_may_not_be_described",
    ),
    one_change(
        "acls-changed-by-anybody",
        "A20: ACLs are changed by who may ALTER the cluster",
        removed(),
        _NOTHING,
    ),
    one_change(
        "an-acl-twice-in-the-log",
        "A20: an ACL that is there already is no record",
        dropped("binding in known"),
        f"{_MACHINE}::test_entries_are_added_once_and_each_fails_alone",
    ),
    one_change(
        "acls-without-number",
        "A20: the number of ACLs is bounded",
        never(),
        f"{_MACHINE}::test_what_one_request_costs_is_bounded",
    ),
    one_change(
        "snapshot-without-acls",
        "A20: a snapshot holds the ACLs",
        instead("if row.of.name != 'acls':\n    ..."),
        f"{_MACHINE}::test_a_snapshot_holds_them_and_a_delta_tells_of_them",
        _SECURED,
    ),
    one_change(
        "damaged-acls-are-replayed",
        "A20: an ACL that cannot be stops the replay",
        condition("... and self.of.name != 'acls'"),
        f"{_MACHINE}::test_records_that_do_not_fit_are_refused",
    ),
    one_change(
        "whoever-leaves-is-unseen",
        "A20: a change whose client has left has its line",
        removed(),
        f"{_AUDIT}::test_a_client_that_leaves_at_once_is_not_unseen",
    ),
    one_change(
        "who-leaves-while-lines-are-written-is-unseen",
        "A28: the changes of a request have their lines though its client leaves while they are written",
        removed(),
        f"{_AUDIT}::test_whoever_leaves_while_lines_are_written_is_not_unseen",
    ),
    one_change(
        "secrets-in-the-audit",
        "A20: the audit holds no secret",
        part("shown(config.name, config.value)", "config.value"),
        f"{_AUDIT}::test_no_secret",
    ),
    one_change(
        "strangers-fill-the-audit",
        "A20: refusals have lines at a bounded rate",
        dropped("one[1] not in DENIED"),
        f"{_AUDIT}::test_what_changes_nothing_has_no_line",
    ),
    one_change(
        "clients-write-the-audit",
        "A20: nobody but brokers writes to the topic of the audit",
        part("INTERNAL_TOPICS", "...[:3]"),
        f"{_AUDIT}::test_clients_write_nothing_to_the_topic_of_the_audit",
    ),
    one_change(
        "clients-make-the-topic-of-the-audit",
        "A20: an internal topic is made with its own settings",
        dropped("one.ref.name not in INTERNAL_TOPICS"),
        f"{_AUDIT}::test_clients_write_nothing_to_the_topic_of_the_audit",
    ),
    one_change(
        "dropped-lines-are-not-counted",
        "A20: what the topic of the audit does not get is counted, and told",
        removed(),
        f"{_TOPIC}::test_what_has_no_room_is_dropped_and_told",
        f"{_TOPIC}::test_a_line_that_is_not_taken_takes_no_other_with_it",
    ),
    one_change(
        "a-gap-in-the-audit-is-silent",
        "A20: lines that are missing have a line in the topic of the audit",
        never(),
        f"{_TOPIC}::test_what_has_no_room_is_dropped_and_told",
    ),
    one_change(
        "audit-lines-wait-without-bound",
        "A20: an audit that cannot be written takes bounded memory",
        value("True"),
        f"{_TOPIC}::test_what_has_no_room_is_dropped_and_told",
    ),
    one_change(
        "audited-changes-are-free",
        "A21: a change that the audit watches pays as any other",
        part("self._inner.charge() if self.answers else FREE", "FREE"),
        "tests/cluster/broker/test_kafka_mutation_quotas.py::test_the_audit_makes_nothing_free",
    ),
    one_change(
        "the-hundredth-change-is-the-last",
        "A28: each change of a request has its line, however many there are",
        removed(),
        f"{_AUDIT}::test_no_change_without_its_line",
    ),
    one_change(
        "long-changes-are-cut",
        "A28: a change that is too long for a line goes on in the next",
        part("count", "1"),
        f"{_AUDIT}::test_no_change_without_its_line",
    ),
    one_change(
        "unnamed-changes-are-unseen",
        "A28: a change has its line where the answer has no place for an error",
        instead("pass"),
        f"{_AUDIT}::test_a_client_that_leaves_is_seen_whatever_its_answer_has_room_for",
    ),
    one_change(
        "failures-without-number",
        "A28: changes that failed have lines at a bounded rate",
        part("may_be_made(name)", "True"),
        f"{_AUDIT}::test_what_failed_is_bounded",
    ),
    one_change(
        "logins-take-the-room-of-changes",
        "A28: changes have room of their own on the way to the topic of the audit",
        part("one.is_change", "False"),
        f"{_TOPIC}::test_changes_have_room_of_their_own",
    ),
    one_change(
        "logins-turn-over-the-files-of-changes",
        "A28: changes have files of their own",
        part("self._changes if is_change else self._attempts", "self._changes"),
        f"{_FILE}::test_no_login_makes_a_change_go",
    ),
    one_change(
        "files-between-are-skipped",
        "A20: whoever follows the audit sees each line once, however its files rotate",
        part("self._neighbour(self._file, -1)", "open(self._path, 'rb')"),
        f"{_TAIL}::test_no_line_is_missed_while_files_rotate",
    ),
    one_change(
        "hosts-are-compared-as-text",
        "A25: a DENY for an address denies, however it is written",
        part("host_of(binding.host)", "binding.host"),
        f"{_RULES}::test_an_address_is_the_same_however_it_is_written",
    ),
    one_change(
        "clients-are-known-as-their-sockets-write-them",
        "A25: an IPv4 client of an IPv6 socket is an IPv4 client",
        part("host_of(asker.host)", "asker.host"),
        f"{_RULES}::test_an_address_is_the_same_however_it_is_written",
    ),
    one_change(
        "hosts-are-filtered-as-text",
        "A25: an entry is found by any text of its address",
        part("host_of(self.host) == host_of(binding.host)", "self.host == binding.host"),
        f"{_RULES}::test_an_address_is_the_same_however_it_is_written",
    ),
    one_change(
        "hosts-are-stored-as-written",
        "A25: new entries are stored as clients are seen",
        part("host_of(one.host)", "one.host"),
        f"{_WIRE}::test_an_address_is_stored_in_one_way_and_found_in_any",
    ),
    one_change(
        "refusals-say-no-words",
        "A31: a broker says who lacks which right on what",
        part("lacking(context.principal, operation, resource)", "''"),
        f"{_RIGHTS}::test_every_call_of_the_admin_says_who_lacks_what",
    ),
    one_change(
        "answers-without-words-stay-so",
        "A31: where an answer has no place for words, the client has them",
        never(),
        f"{_RIGHTS}::test_every_call_of_the_admin_says_who_lacks_what",
        f"{_RIGHTS}::test_producers_and_consumers_say_it_too",
    ),
    one_change(
        "log-dirs-that-are-denied-are-none",
        "A31: what is denied is no empty answer",
        never(),
        f"{_RIGHTS}::test_every_call_of_the_admin_says_who_lacks_what",
    ),
)
