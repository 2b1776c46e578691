"""The model of a gRPC stream, from its first message: stock clients name it there and nowhere else.

A script of Envoy's can wait for a whole body or for none of it, and the body of a stream has no end. So Envoy's filter for
fields of gRPC messages waits for the first message of a stream and notes its `model_name`; the request guard reads that.
The first message decides for the whole stream. All other calls pass this filter unread.
"""

from __future__ import annotations

import base64
from typing import Any

from google.protobuf import descriptor_pb2

#: The name of the filter, under which it notes the model.
STREAM_FILTER = "envoy.filters.http.grpc_field_extraction"
_PACKAGE, _SERVICE, _CALL, _FIELD = "inference", "GRPCInferenceService", "ModelStreamInfer", "model_name"


def stream_model() -> dict[str, Any]:
    """The HTTP filter. It stands before the request guard."""
    disposition: dict[str, Any] = {"request_field_extractions": {_FIELD: {}}}
    return {
        "name": STREAM_FILTER,
        "typed_config": {
            "@type": "type.googleapis.com/"
            "envoy.extensions.filters.http.grpc_field_extraction.v3.GrpcFieldExtractionConfig",
            "descriptor_set": {"inline_bytes": base64.b64encode(_descriptors()).decode()},
            "extractions_by_method": {f"{_PACKAGE}.{_SERVICE}.{_CALL}": disposition},
        },
    }


def _descriptors() -> bytes:
    """Of the protocol just this call, and of its message just the model's name: Envoy skips fields that it does not know."""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="stream.proto", package=_PACKAGE, syntax="proto3")
    request = file.message_type.add(name="ModelInferRequest")
    request.field.add(name=_FIELD, number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    file.message_type.add(name="ModelStreamInferResponse")
    file.service.add(name=_SERVICE).method.add(
        name=_CALL,
        input_type=f".{_PACKAGE}.ModelInferRequest",
        output_type=f".{_PACKAGE}.ModelStreamInferResponse",
        client_streaming=True,
        server_streaming=True,
    )
    return descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString(deterministic=True)
