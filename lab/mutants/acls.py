"""Mutants of rule A20: the authorizer is asked about everything, and decides as Kafka's does."""

from __future__ import annotations

from lab.mutants.mutant import Mutant, one_change

_RULES = "tests/cluster/security/test_acl_rules.py"
_WALK = "tests/cluster/broker/test_acl_walk.py"
_WIRE = "tests/cluster/broker/test_acls_wire.py"
_NOTHING = f"{_WALK}::test_a_principal_with_nothing_learns_and_changes_nothing"
_AUDIT = "tests/cluster/broker/test_audit.py"
_MACHINE = "tests/controller/machine/test_acls.py"

TABLE: tuple[Mutant, ...] = (
    one_change(
        "an-allow-outdoes-a-deny",
        "A20: a DENY forbids however many ALLOWs fit",
        "cluster.security.acl_rules:AclRules.decide",
        "if binding.permission is Permission.DENY:",
        "if binding.permission is Permission.DENY and allowing is None:",
        f"{_RULES}::test_a_deny_wins_however_narrow_the_allow",
        f"{_RULES}::test_the_index_decides_as_the_oracle",
    ),
    one_change(
        "a-deny-implies-too",
        "A20: a DENY of READ does not forbid DESCRIBE",
        "cluster.security.acl_rules:_fits",
        "if binding.permission is Permission.DENY:",
        "if False:",
        f"{_RULES}::test_an_allow_implies_describe_and_a_deny_does_not",
    ),
    one_change(
        "others-acls-name-nothing",
        "A20: a resource that any ACL names is not everybody's",
        "cluster.security.acl_rules:AclRules.decide",
        "            for binding in _of(section, asker):\n",
        "            named = any(_of(section, asker))\n            for binding in _of(section, asker):\n",
        f"{_RULES}::test_nothing_is_allowed_that_no_entry_allows",
    ),
    one_change(
        "answers-outlive-the-acls",
        "A20: what was decided is forgotten when an ACL changes",
        "cluster.broker.standard_authorizer:StandardAuthorizer._make_anew",
        "self._remembered.clear()",
        "pass",
        f"{_WIRE}::test_rights_given_and_taken_count_at_once",
    ),
    one_change(
        "one-principals-answer-for-all",
        "A20: an answer is remembered for one principal",
        "cluster.broker.standard_authorizer:StandardAuthorizer.authorize",
        "question = (principal, host, operation, resource)",
        'question = ("User:ANONYMOUS", host, operation, resource)',
        f"{_WIRE}::test_another_principal_has_rights_of_its_own",
    ),
    one_change(
        "a-broker-behind-allows",
        "A20: a broker that has not caught up allows nothing",
        "cluster.broker.standard_authorizer:StandardAuthorizer._decide",
        "if not self._caught_up():",
        "if False:",
        f"{_WIRE}::test_a_broker_that_has_not_caught_up_allows_nothing",
    ),
    one_change(
        "parked-fetch-keeps-its-right",
        "A20: a fetch that has waited is asked about again",
        "cluster.broker.handlers.fetch:FetchHandler._respond",
        "if self._authorizer.generation is not asked:",
        "if False:",
        f"{_WIRE}::test_a_fetch_that_waits_gets_nothing_once_the_right_is_taken",
    ),
    one_change(
        "unknown-before-forbidden",
        "A20: by name a topic is asked about before it is looked for",
        "cluster.broker.requested_topics:find_allowed_topic",
        "if name is None or allowed(",
        "if name is None or isinstance(found, ErrorCode) or allowed(",
        _NOTHING,
    ),
    one_change(
        "ids-tell-that-a-topic-exists",
        "A20: an id tells nothing to a principal that may not describe the topic",
        "cluster.broker.requested_topics:find_allowed_topic",
        "return ErrorCode.UNKNOWN_TOPIC_ID",
        "return ErrorCode.TOPIC_AUTHORIZATION_FAILED",
        _NOTHING,
        f"{_WIRE}::test_topics_are_deleted_by_id_only_with_the_right",
    ),
    one_change(
        "groups-are-listed-to-all",
        "A20: a list leaves out what may not be described",
        "cluster.broker.handlers.group_admin:GroupAdminHandler._list",
        "zip(listed, answers, strict=True) if answer]",
        "zip(listed, answers, strict=True)]",
        _NOTHING,
    ),
    one_change(
        "patterns-show-every-topic",
        "A20: a member is told only of topics that it may describe",
        "cluster.broker.handlers.consumer_groups:ConsumerGroupsHandler._visible",
        "if topic_id not in known or may_see(",
        "if True or may_see(",
        f"{_WIRE}::test_a_pattern_shows_no_topic_that_may_not_be_described",
    ),
    one_change(
        "acls-changed-by-anybody",
        "A20: ACLs are changed by who may ALTER the cluster",
        "cluster.broker.handlers.acls:AclsHandler._check",
        "if not allowed(self._authorizer, context, operation, CLUSTER):",
        "if False:",
        _NOTHING,
    ),
    one_change(
        "an-acl-twice-in-the-log",
        "A20: an ACL that is there already is no record",
        "controller.machine.acls:create_acls",
        "elif binding in known or binding in added:",
        "elif binding in added:",
        f"{_MACHINE}::test_entries_are_added_once_and_each_fails_alone",
    ),
    one_change(
        "acls-without-number",
        "A20: the number of ACLs is bounded",
        "controller.machine.acls:create_acls",
        "elif len(known) + len(added) >= ACLS_MAX:",
        "elif False:",
        f"{_MACHINE}::test_what_one_request_costs_is_bounded",
    ),
    one_change(
        "snapshot-without-acls",
        "A20: a snapshot holds the ACLs",
        "controller.metadata.snapshot:image_records",
        "records.extend(AccessControlEntryRecord(binding) for binding in sorted(image.acls))",
        "pass",
        f"{_MACHINE}::test_a_snapshot_holds_them_and_a_delta_tells_of_them",
    ),
    one_change(
        "damaged-acls-are-replayed",
        "A20: an ACL that cannot be stops the replay",
        "controller.metadata.delta:MetadataDelta._add_acl",
        "        if fault:\n",
        "        if False:\n",
        f"{_MACHINE}::test_records_that_do_not_fit_are_refused",
    ),
    one_change(
        "whoever-leaves-is-unseen",
        "A20: a change whose client has left has its line",
        "cluster.broker.audit:Audit._audited",
        "exchange.when_gone = gone",
        "pass",
        f"{_AUDIT}::test_a_client_that_leaves_at_once_is_not_unseen",
    ),
    one_change(
        "secrets-in-the-audit",
        "A20: the audit holds no secret",
        "cluster.broker.audit:_configs_altered",
        "{shown(config.name, config.value)}",
        "{config.value}",
        f"{_AUDIT}::test_no_secret_and_not_without_bound",
    ),
    one_change(
        "strangers-fill-the-audit",
        "A20: refusals have lines at a bounded rate",
        "cluster.broker.audit:Audit._note",
        "if one[1] not in DENIED",
        "",
        f"{_AUDIT}::test_what_changes_nothing_has_no_line",
    ),
)
