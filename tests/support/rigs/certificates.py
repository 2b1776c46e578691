"""A certificate authority for tests, and what it signs: as docs/operations.md asks for."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from serving.environments.core.addresses import CONTROL_PLANE_NAME, TlsFiles, gateway_identity


class Authority:
    """Writes PEM files into `folder`, under names that begin with `name`."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self._folder, self._name = folder, name
        self._key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        made = self._builder(subject, subject, self._key.public_key())
        made = made.add_extension(x509.BasicConstraints(True, 0), critical=True).add_extension(usage, critical=True)
        self._certificate = made.sign(self._key, hashes.SHA256())
        self.file = self._write(f"{name}.crt", self._certificate.public_bytes(serialization.Encoding.PEM))

    def control_plane(self, trusts: Authority | None = None) -> TlsFiles:
        return self._leaf("control-plane", x509.DNSName(CONTROL_PLANE_NAME), trusts)

    def gateway(self, name: str, trusts: Authority | None = None) -> TlsFiles:
        return self._leaf(name, x509.UniformResourceIdentifier(gateway_identity(name)), trusts)

    def server(self, *names: str) -> TlsFiles:
        """Of a web server of these names or addresses."""
        return self._leaf(names[0], [_general_name(name) for name in names], None)

    def _leaf(
        self, name: str, identity: x509.GeneralName | list[x509.GeneralName], trusts: Authority | None
    ) -> TlsFiles:
        """Control plane and gateway both call each other: for streams the gateway, for counters the engine."""
        purpose = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        made = self._builder(subject, self._certificate.subject, key.public_key())
        for extension in (x509.SubjectAlternativeName(identity if isinstance(identity, list) else [identity]), purpose):
            made = made.add_extension(extension, critical=False)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        signed = made.add_extension(issuer, critical=False).sign(self._key, hashes.SHA256())
        pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        certificate = self._write(f"{self._name}-{name}.crt", signed.public_bytes(serialization.Encoding.PEM))
        return TlsFiles(certificate, self._write(f"{self._name}-{name}.key", pem), (trusts or self).file)

    def _builder(
        self, subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
    ) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        made = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
        made = made.serial_number(x509.random_serial_number()).not_valid_before(now - timedelta(minutes=5))
        return made.not_valid_after(now + timedelta(hours=1))

    def _write(self, name: str, data: bytes) -> str:
        file = self._folder / name
        file.write_bytes(data)
        return str(file)


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)
