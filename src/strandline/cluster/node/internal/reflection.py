"""gRPC's server reflection (grpc.reflection.v1alpha): `grpcurl HOST:PORT list` names the services."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from strandline.proto.ports import Stream, StreamHandler

REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"


def reflection_handlers(services: Iterable[str]) -> Mapping[str, StreamHandler]:
    """Return the handler of the reflection service, which lists `services` and itself."""
    names = [*services, REFLECTION.split("/")[1]]

    async def serve(stream: Stream) -> None:
        from grpc_reflection.v1alpha import reflection, reflection_pb2  # on first use: it imports grpcio

        servicer = reflection.ReflectionServicer(names)
        while (frame := await stream.read()) is not None:
            request = reflection_pb2.ServerReflectionRequest.FromString(frame)
            for reply in servicer.ServerReflectionInfo(iter([request]), None):
                await stream.write(reply.SerializeToString())

    return {REFLECTION: serve}
