"""Producer ids, in blocks that are never given out twice (rule C3)."""

from __future__ import annotations

from strandline.controller.api import AllocateProducerIdsRequest, ProducerIdBlock
from strandline.controller.machine.result import Result
from strandline.controller.machine.state import PRODUCER_ID_BLOCK, MachineState
from strandline.controller.metadata.records import ProducerIdsRecord
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import ProducerId

_LAST_PRODUCER_ID = 2**63 - 1


def allocate_producer_ids(state: MachineState, request: AllocateProducerIdsRequest) -> Result[ProducerIdBlock]:
    """The next block, for a registered broker. A reply that is lost wastes the block, which is fine: there are 2^63.

    Raises:
        KafkaError: STALE_BROKER_EPOCH; UNKNOWN_SERVER_ERROR once all ids are used up.
    """
    state.broker_of_epoch(request.node_id, request.broker_epoch)
    first = state.image.next_producer_id
    if first > _LAST_PRODUCER_ID - PRODUCER_ID_BLOCK:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "All producer ids have been given out.")
    record = ProducerIdsRecord(request.node_id, request.broker_epoch, ProducerId(first + PRODUCER_ID_BLOCK))
    return Result(ProducerIdBlock(first, PRODUCER_ID_BLOCK), [record])
