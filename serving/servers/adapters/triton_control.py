"""Loads and unloads models on one Triton server that was started with `--model-control-mode=explicit`, over gRPC.

Each model that is loaded here carries a stamp in its configuration, by which it is told from what others loaded under its name.
Source: Triton's model repository extension, `config` and `file:` parameters of a load.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from google.protobuf import json_format, text_format
from tritonclient import grpc as triton_grpc
from tritonclient.grpc import model_config_pb2
from tritonclient.utils import InferenceServerException

from serving.ports import InferenceError
from serving.servers.adapters.triton_errors import grpc_error
from serving.servers.adapters.triton_requests import CHANNEL

_STAMP = "sluicegate_server"
_ANSWER_S = 5.0
_VERSION_S = 3.0
_LONGEST_NAME = 100


class About(NamedTuple):
    """`tells_configuration`: whether it returns a model's configuration, and so the stamp in it."""

    name: str
    version: str
    tells_configuration: bool


class TritonControl:
    """Safe to use from several threads. The channel closes with the object."""

    def __init__(self, host: str, grpc_port: int) -> None:
        self._client = triton_grpc.InferenceServerClient(f"{host}:{grpc_port}", channel_args=CHANNEL)

    def about(self) -> About:
        """Returns what the server states of itself. Raises InferenceError."""
        try:
            told = self._client.get_server_metadata(client_timeout=_VERSION_S)
        except InferenceServerException as error:
            raise _error(error) from error
        return About(_plain(told.name), _plain(told.version), "model_configuration" in told.extensions)

    def serves(self, model: str, *, within_s: float = _ANSWER_S) -> bool:
        """Whether it is ready to answer for the model. Raises InferenceError: `unreachable`, `timeout`."""
        try:
            return bool(self._client.is_model_ready(model, client_timeout=within_s))
        except InferenceServerException as error:
            if (known := _error(error)).reason == "rejected":
                return False
            raise known from error

    def stamp_of(self, model: str, *, within_s: float = _ANSWER_S) -> str | None:
        """The stamp that the model was loaded with, empty of one without; None where no such model is loaded. Raises InferenceError."""
        try:
            config = self._client.get_model_config(model, client_timeout=within_s).config
        except InferenceServerException as error:
            if (known := _error(error)).reason == "rejected":
                return None
            raise known from error
        return str(config.parameters[_STAMP].string_value) if _STAMP in config.parameters else ""

    def load(self, model: str, config: str, files: Mapping[str, bytes], *, stamp: str, timeout_s: float) -> None:
        """Returns when the model is loaded. Raises InferenceError, with the server's own words.

        Args:
            config: its config.pbtxt.
            files: the model's folder, by paths such as 1/model.onnx; none for what lies in the server's own repository.
        """
        parsed = text_format.Parse(config, model_config_pb2.ModelConfig())
        parsed.parameters[_STAMP].string_value = stamp
        said = json_format.MessageToJson(parsed, preserving_proto_field_name=True)
        given = {f"file:{path}": data for path, data in files.items()} or None
        try:
            self._client.load_model(model, config=said, files=given, client_timeout=timeout_s)
        except InferenceServerException as error:
            raise _error(error) from error

    def unload(self, model: str, *, timeout_s: float) -> None:
        """Raises InferenceError."""
        try:
            self._client.unload_model(model, client_timeout=timeout_s)
        except InferenceServerException as error:
            raise _error(error) from error


def _plain(text: str) -> str:
    """The text as PostgreSQL stores it, which is without NUL, and at a name's length."""
    return text.replace("\x00", "")[:_LONGEST_NAME]


def _error(error: InferenceServerException) -> InferenceError:
    status = str(error.status() or "").removeprefix("StatusCode.")
    return grpc_error(status, str(error.message() or error))
