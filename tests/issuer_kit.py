"""A real OpenID Connect issuer over HTTP on loopback, with keys of its own: discovery, keys, device flow."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs

from joserfc import jwk, jwt

CLIENT = "djinn"


@dataclass
class Grant:
    """``answers``: errors that the token endpoint gives first. ``claims``: of the user."""

    claims: dict[str, Any]
    answers: list[str]


class Issuer:
    """Inside a ``with`` statement. ``life_s``: of its tokens. ``asked``: paths, in order."""

    def __init__(self, life_s: float = 300.0) -> None:
        self.life_s = life_s
        self.keys: list[Any] = [jwk.RSAKey.generate_key(2048, {"kid": "first"})]
        self.asked: list[str] = []
        self.forms: list[dict[str, str]] = []
        self.broken = False
        self.refreshes: dict[str, Grant] = {}
        self.devices: dict[str, Grant] = {}
        self.next_grant = Grant({"sub": "1", "preferred_username": "ann", "groups": ["staff"]}, [])

    def __enter__(self) -> Self:
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.asked.append(self.path)
                self.answer(*issuer.document(self.path))

            def do_POST(self) -> None:
                issuer.asked.append(self.path)
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                form = {name: values[0] for name, values in parse_qs(body).items()}
                issuer.forms.append(form)
                self.answer(*issuer.granted(self.path, form))

            def answer(self, status: int, content: object) -> None:
                body = json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def document(self, path: str) -> tuple[int, object]:
        if self.broken:
            return 500, {}
        if path == "/.well-known/openid-configuration":
            return 200, {
                "issuer": self.url,
                "jwks_uri": f"{self.url}/keys",
                "token_endpoint": f"{self.url}/token",
                "device_authorization_endpoint": f"{self.url}/device",
                "revocation_endpoint": f"{self.url}/revoke",
                "scopes_supported": ["openid", "profile", "offline_access"],
            }
        if path == "/keys":
            strange = {"kty": "EC", "crv": "of tomorrow", "kid": "strange", "x": "1", "y": "2"}
            return 200, {"keys": [*(key.as_dict(private=False) for key in self.keys), strange]}
        return 404, {}

    def granted(self, path: str, form: Mapping[str, str]) -> tuple[int, object]:
        if path == "/revoke":
            self.refreshes.pop(form["token"], None)
            return 200, {}
        if path == "/device":
            code = uuid.uuid4().hex
            self.devices[code] = self.next_grant
            return 200, {
                "device_code": code,
                "user_code": "WDJB-MJHT",
                "verification_uri": f"{self.url}/confirm",
                "expires_in": 60,
                "interval": 0.01,
            }
        if form["grant_type"] == "refresh_token":
            grant = self.refreshes.pop(form["refresh_token"], None)
        else:
            grant = self.devices.get(form["device_code"])
            if grant is not None and grant.answers:
                return 400, {"error": grant.answers.pop(0)}
        if grant is None:
            return 400, {"error": "invalid_grant"}
        refresh = uuid.uuid4().hex
        self.refreshes[refresh] = grant
        token = self.token(**grant.claims)
        return 200, {"access_token": token, "refresh_token": refresh, "expires_in": self.life_s}

    def token(self, key: Any = None, alg: str = "RS256", **claims: Any) -> str:
        """Sign a token of this issuer; ``claims`` replace its usual ones, None leaves one out."""
        key = key or self.keys[0]
        usual = {
            "iss": self.url,
            "aud": CLIENT,
            "sub": "1",
            "exp": time.time() + self.life_s,
            "jti": uuid.uuid4().hex,
        }
        said = {name: value for name, value in {**usual, **claims}.items() if value is not None}
        return jwt.encode({"alg": alg, "kid": key.kid}, said, key, algorithms=[alg])
