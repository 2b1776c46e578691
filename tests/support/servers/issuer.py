"""An OpenID Connect issuer: a real HTTP server on loopback with discovery, keys that rotate, the code flow with PKCE, and faults.

It checks what it is sent as an issuer does (redirect address, verifier, client secret) and shares no code with what it is asked by.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, quote, unquote_plus, urlencode, urlsplit

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

CLIENT, SECRET, AUDIENCE = "sluicegate", "s3cret: +/%", "https://sluicegate.example"
GITHUB = {
    "repository_id": "4711", "repository_owner_id": "42", "repository": "acme/ranker", "repository_owner": "acme",
    "ref": "refs/heads/main", "ref_type": "branch", "event_name": "push", "environment": "production",
    "job_workflow_ref": "acme/ranker/.github/workflows/release.yml@refs/heads/main", "run_id": "99", "actor_id": "7",
    "sub": "repo:acme@42/ranker@4711:environment:production",
}  # fmt: skip
GITLAB = {
    "project_id": "22", "namespace_id": "72", "project_path": "acme/ranker", "ref": "main", "ref_type": "branch",
    "ref_protected": "true", "environment": "production", "user_login": "ann", "pipeline_id": "1", "job_id": "2",
    "sub": "project_path:acme/ranker:ref_type:branch:ref:main",
}  # fmt: skip


@dataclass
class SigningKey:
    kid: str
    private: Any
    algorithm: str

    @property
    def public(self) -> dict[str, Any]:
        names = {"RS256": jwt.algorithms.RSAAlgorithm, "ES256": jwt.algorithms.ECAlgorithm}
        kind = names.get(self.algorithm, jwt.algorithms.OKPAlgorithm)
        told: dict[str, Any] = kind.to_jwk(self.private.public_key(), as_dict=True)
        return told | {"kid": self.kid, "use": "sig", "alg": self.algorithm}

    @property
    def public_pem(self) -> bytes:
        told: bytes = self.private.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        return told


def new_key(algorithm: str = "ES256", bits: int = 2048) -> SigningKey:
    if algorithm == "RS256":
        private: Any = rsa.generate_private_key(65537, bits)
    else:
        private = (
            ec.generate_private_key(ec.SECP256R1()) if algorithm == "ES256" else ed25519.Ed25519PrivateKey.generate()
        )
    return SigningKey(secrets.token_hex(4), private, algorithm)


@dataclass
class Issuer:
    """`person`: the claims of whoever signs in. `fault`: slow, huge, redirect, garbage, wrong_issuer or bad_status, or none.

    `asked` counts the requests by path. `answers_iss`: whether the answer of a sign-in names the issuer (RFC 9207).
    """

    person: dict[str, Any] = field(default_factory=lambda: {"sub": "ann-1", "preferred_username": "ann"})
    keys: list[SigningKey] = field(default_factory=lambda: [new_key()])
    fault: str = ""
    answers_iss: bool = True
    iss_in_answer: str = ""
    nonce_override: str | None = None
    token_override: str | None = None
    asked: dict[str, int] = field(default_factory=dict)
    refusals: list[str] = field(default_factory=list)
    url: str = ""
    _codes: dict[str, dict[str, str]] = field(default_factory=dict)

    def __enter__(self) -> Issuer:
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer._serve(self, b"")

            def do_POST(self) -> None:
                issuer._serve(self, self.rfile.read(int(self.headers.get("Content-Length") or 0)))

            def log_message(self, *_: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            def handle_error(self, *_: Any) -> None:  # a caller that gave up is what some tests are about
                pass

        self._server = Server(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def leave(self) -> None:
        """It is away from now on: nothing listens."""
        if not self._left.is_set():
            self._left.set()
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()

    def rotate(self, *, keeps_old: bool = True, algorithm: str = "ES256") -> SigningKey:
        """A new key, which signs from now on; the ones before are withdrawn unless kept."""
        made = new_key(algorithm)
        self.keys = [made, *(self.keys if keeps_old else [])]
        return made

    def token(self, _key: SigningKey | None = None, _header: dict[str, Any] | None = None, **claims: Any) -> str:
        """A token with these claims over the usual ones; None leaves a claim out."""
        now, key = int(time.time()), _key or self.keys[0]
        told = {
            "iss": self.url, "aud": AUDIENCE, "iat": now, "exp": now + 300, "jti": secrets.token_hex(8), "sub": "job-1",
            **claims,
        }  # fmt: skip
        told = {name: value for name, value in told.items() if value is not None}
        header = {name: value for name, value in {"kid": key.kid, **(_header or {})}.items() if value is not None}
        return jwt.encode(told, key.private, algorithm=key.algorithm, headers=header)

    def github_token(self, **claims: Any) -> str:
        return self.token(**{**GITHUB, **claims})

    def gitlab_token(self, **claims: Any) -> str:
        return self.token(**{**GITLAB, **claims})

    def authorize(self, address: str) -> str:
        """What the browser is sent back to, once the person has signed in there. Raises ValueError as the issuer would refuse."""
        asked = {name: values[0] for name, values in parse_qs(urlsplit(address).query).items()}
        if asked["client_id"] != CLIENT or asked["response_type"] != "code" or "openid" not in asked["scope"].split():
            raise ValueError(f"refused: {asked}")
        if asked["code_challenge_method"] != "S256" or min(len(asked["state"]), len(asked["nonce"])) < 32:
            raise ValueError(f"refused: {asked}")
        code = secrets.token_urlsafe(16)
        self._codes[code] = asked
        answer = {"code": code, "state": asked["state"]}
        if self.answers_iss:
            answer["iss"] = self.iss_in_answer or self.url
        return f"{asked['redirect_uri']}?{urlencode(answer)}"

    def _serve(self, request: BaseHTTPRequestHandler, body: bytes) -> None:
        path = urlsplit(request.path).path
        self.asked[path] = self.asked.get(path, 0) + 1
        if self.fault == "slow":
            self._left.wait(30)
            return
        if self.fault == "redirect":
            _answer(request, 302, {}, Location=f"{self.url}/elsewhere")
        elif self.fault == "bad_status":
            _answer(request, 500, {"error": "broken"})
        elif self.fault == "huge":
            _answer(request, 200, {"issuer": self.url, "padding": "x" * 300_000})
        elif self.fault == "garbage":
            _answer(request, 200, ["no", "object"])
        elif path == "/.well-known/openid-configuration":
            _answer(request, 200, self._description())
        elif path == "/keys":
            _answer(request, 200, {"keys": [key.public for key in self.keys]})
        elif path == "/authorize":
            _answer(request, 302, {}, Location=self.authorize(request.path))
        elif path == "/actions":
            self._give_job_its_token(request)
        elif path == "/token":
            self._exchange(request, body)
        else:
            _answer(request, 404, {})

    def _description(self) -> dict[str, Any]:
        return {
            "issuer": f"{self.url}/other" if self.fault == "wrong_issuer" else self.url,
            "jwks_uri": f"{self.url}/keys",
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "authorization_response_iss_parameter_supported": self.answers_iss,
        }

    def _exchange(self, request: BaseHTTPRequestHandler, body: bytes) -> None:
        sent = {name: values[0] for name, values in parse_qs(body.decode()).items()}
        asked = self._codes.pop(sent.get("code", ""), None)  # a code works once
        user, _, password = base64.b64decode(request.headers.get("Authorization", "")[6:]).decode().partition(":")
        challenge = base64.urlsafe_b64encode(hashlib.sha256(sent.get("code_verifier", "").encode()).digest()).rstrip(
            b"="
        )
        if (unquote_plus(user), unquote_plus(password)) != (CLIENT, SECRET):
            self._refuse(request, 401, "invalid_client")
        elif asked is None or asked["code_challenge"] != challenge.decode():
            self._refuse(request, 400, "invalid_grant")
        elif asked["redirect_uri"] != sent.get("redirect_uri"):
            self._refuse(request, 400, "invalid_request")
        else:
            nonce = asked["nonce"] if self.nonce_override is None else self.nonce_override
            told = self.token_override or self.token(**{"aud": CLIENT, "nonce": nonce, **self.person})
            _answer(request, 200, {"id_token": told, "access_token": "unused", "token_type": "Bearer"})

    def _give_job_its_token(self, request: BaseHTTPRequestHandler) -> None:
        """As GitHub Actions does: by a bearer token of the job, for the audience that it asks for."""
        scheme, _, secret = request.headers.get("Authorization", "").partition(" ")
        if (scheme.lower(), secret) != ("bearer", "of-the-job"):
            self._refuse(request, 401, "unauthorized")
        else:
            _answer(
                request, 200, {"value": self.github_token(aud=parse_qs(urlsplit(request.path).query)["audience"][0])}
            )

    def _refuse(self, request: BaseHTTPRequestHandler, status: int, error: str) -> None:
        self.refusals.append(error)
        _answer(request, status, {"error": error})


def unsigned(claims: dict[str, Any]) -> str:
    """A token of the algorithm none, which every verifier must refuse."""
    return jwt.encode(claims, None, algorithm="none")


def signed_with_public_key(key: SigningKey, claims: dict[str, Any]) -> str:
    """HS256 with the public key as its secret: what a verifier that lets the header choose takes for good."""
    parts = [_b64(json.dumps(part).encode()) for part in ({"alg": "HS256", "kid": key.kid, "typ": "JWT"}, claims)]
    import hmac

    mac = hmac.new(key.public_pem, b".".join(parts), hashlib.sha256).digest()
    return b".".join([*parts, _b64(mac)]).decode()


def claims_of(issuer: Issuer, **more: Any) -> dict[str, Any]:
    """What a token's claims are, as a dictionary to forge others from."""
    read: dict[str, Any] = jwt.decode(issuer.token(**more), options={"verify_signature": False})
    return read


def return_path(address: str) -> str:
    """The path and query of the address, as the test client takes it."""
    parts = urlsplit(address)
    return f"{quote(parts.path)}?{parts.query}"


def _b64(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def _answer(request: BaseHTTPRequestHandler, status: int, told: Any, **headers: str) -> None:
    data = json.dumps(told).encode()
    request.send_response(status)
    for name, value in headers.items():
        request.send_header(name, value)
    request.send_header("Content-Type", "application/json")
    request.send_header("Content-Length", str(len(data)))
    request.end_headers()
    request.wfile.write(data)
