"""TLS between machines as Envoy's configuration writes it: version 1.3, and a certificate from both sides."""

from __future__ import annotations

from typing import Any

from serving.environments.core.addresses import CONTROL_PLANE_NAME, TlsFiles

_TLS = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3."


def to_control_plane(tls: TlsFiles) -> dict[str, Any]:
    """The transport socket of a gateway that calls its control plane."""
    return _socket("UpstreamTlsContext", tls, ["h2"], sni=CONTROL_PLANE_NAME)


def from_control_plane(tls: TlsFiles) -> dict[str, Any]:
    """The transport socket of a gateway that is called by a part of the control plane."""
    return _socket("DownstreamTlsContext", tls, ["http/1.1"], require_client_certificate=True)


def _socket(kind: str, tls: TlsFiles, protocols: list[str], **more: Any) -> dict[str, Any]:
    # An upstream's highest version is 1.2 unless it is named as well, and Envoy only says at debug level why nothing is then left.
    versions = dict.fromkeys(("tls_minimum_protocol_version", "tls_maximum_protocol_version"), "TLSv1_3")
    common = {
        "alpn_protocols": protocols,
        "tls_params": versions,
        "tls_certificates": [
            {"certificate_chain": {"filename": tls.certificate}, "private_key": {"filename": tls.key}}
        ],
        "validation_context": {
            "trusted_ca": {"filename": tls.authority},
            "match_typed_subject_alt_names": [{"san_type": "DNS", "matcher": {"exact": CONTROL_PLANE_NAME}}],
        },
    }
    typed = {"@type": f"{_TLS}{kind}", "common_tls_context": common, **more}
    return {"name": "envoy.transport_sockets.tls", "typed_config": typed}
