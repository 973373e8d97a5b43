"""RemoveRaftVoter (81): a controller that lost its log loses its vote (KIP-853)."""

from __future__ import annotations

from typing import Any

from strandline.cluster.kafka.api import Call, message_api
from strandline.controller.voter_api import RemoveVoterRequest
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import ZERO_UUID


async def _answer(call: Call) -> Any:
    request = call.request
    change = RemoveVoterRequest(request.voter_id, request.voter_directory_id or ZERO_UUID)
    await call.service.remove_voter(call.context, request.cluster_id, change, call.service.config.request_timeout_ms)
    return _respond(call, ErrorCode.NONE, "")


def _respond(call: Call, error: ErrorCode, message: str) -> Any:
    return call.make("RemoveRaftVoterResponse", throttle_time=0, error_code=error, error_message=message or None)


API = message_api(
    key=81,
    name="RemoveRaftVoter",
    schema="remove_raft_voter",
    first=0,
    last=0,
    flexible_since=0,
    refuse=_respond,
    answer_later=_answer,
)
