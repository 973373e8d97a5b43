"""AddRaftVoter (80): a controller's directory is given its vote (KIP-853).

The endpoints are those that every node has in its configuration: what the request says of them is passed over.
"""

from __future__ import annotations

from typing import Any

from strandline.cluster.broker.api import Call, message_api, part
from strandline.controller.api import AddVoterRequest
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import ZERO_UUID
from strandline.proto.kafka.apis import Api


async def _answer(call: Call) -> Any:
    request = call.request
    change = AddVoterRequest(request.voter_id, request.voter_directory_id or ZERO_UUID)
    await call.service.add_voter(call.context, request.cluster_id, change, call.request.timeout)
    return _refuse(call, ErrorCode.NONE, "")


def _refuse(call: Call, error: ErrorCode, message: str) -> Any:
    return part(throttle_time=0, error_code=error, error_message=message or None)


API = message_api(
    Api.ADD_RAFT_VOTER,
    first=0,
    last=0,
    refuse=_refuse,
    answer_later=_answer,
)
