"""Logins by an identity provider's device flow (RFC 8628), kept in a file of the user's alone.

The file has an entry for each pool. Several programs may use it at once: a lock keeps two of them from
spending one refresh token.
"""

from __future__ import annotations

import base64
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import httpx
import msgspec

from djinn_lab.client.ways import proxy_for
from djinn_lab.config import config_directory
from djinn_lab.errors import AuthenticationError, PoolError
from djinn_lab.protocol.rest.login import LoginWay
from djinn_lab.system.files import is_private
from djinn_lab.system.locks import lock

FILE_NAME = "logins.json"
TIMEOUT_S = 10.0
RENEW_BEFORE_S = 60.0
"""A token is renewed so long before its end, or in the last third of a shorter life."""
POLL_S = 5.0
"""Between two questions whether the user has confirmed, where the issuer names no other time (RFC 8628)."""
WANTED_SCOPES = ("openid", "profile", "groups", "offline_access")
DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
LOGIN_AGAIN = "Log in again: djinn-lab login."
Kind = TypeVar("Kind")


class Issuer(msgspec.Struct, frozen=True):
    """The part of a discovery document that a client needs."""

    issuer: str
    token_endpoint: str
    device_authorization_endpoint: str = ""
    revocation_endpoint: str = ""
    scopes_supported: tuple[str, ...] = ()


class DeviceCode(msgspec.Struct, frozen=True):
    """What a user has to confirm: ``user_code`` at ``verification_uri``, within ``expires_in`` seconds."""

    device_code: str
    user_code: str
    verification_uri: str
    expires_in: float = 600.0
    interval: float = POLL_S
    verification_uri_complete: str = ""


class Granted(msgspec.Struct, frozen=True):
    """The answer of a token endpoint."""

    access_token: str
    refresh_token: str = ""
    id_token: str = ""
    expires_in: float = 300.0


class StoredLogin(msgspec.Struct, frozen=True):
    """``token``: for the pool. Times in seconds since the epoch."""

    way: LoginWay
    token: str
    refresh_token: str
    made_at: float
    expires_at: float


def logins_path() -> Path:
    return config_directory() / FILE_NAME


def discover(way: LoginWay) -> Issuer:
    """Ask an issuer for its addresses. Raises PoolError."""
    address = f"{way.issuer}/.well-known/openid-configuration"
    found = _answer(
        Issuer, lambda: httpx.get(address, timeout=TIMEOUT_S, trust_env=False, proxy=proxy_for(address))
    )
    if found.issuer.rstrip("/") != way.issuer.rstrip("/"):
        raise PoolError(f"The issuer {way.issuer} calls itself {found.issuer}.", "Ask its administrator.")
    return found


def begin(way: LoginWay, issuer: Issuer) -> DeviceCode:
    """Begin a device flow. Raises PoolError."""
    if not issuer.device_authorization_endpoint:
        raise PoolError(f"The issuer {way.issuer} offers no device flow.", "Use a token of the pool instead.")
    supported = issuer.scopes_supported or WANTED_SCOPES[:2]
    form = {"client_id": way.client_id, "scope": " ".join(s for s in WANTED_SCOPES if s in supported)}
    if way.audience != way.client_id:
        form["audience"] = way.audience
    return _answer(DeviceCode, lambda: _post(issuer.device_authorization_endpoint, form))


def finish(
    way: LoginWay, issuer: Issuer, code: DeviceCode, sleep: Callable[[float], None] = time.sleep
) -> StoredLogin:
    """Wait until the user has confirmed. Raises AuthenticationError when that is refused, or too late."""
    form = {"grant_type": DEVICE_GRANT, "device_code": code.device_code, "client_id": way.client_id}
    waited_s, pause_s = 0.0, code.interval
    while waited_s < code.expires_in:
        sleep(pause_s)
        waited_s += pause_s
        try:
            answer = _post(issuer.token_endpoint, form)
        except httpx.TransportError:
            pause_s *= 2  # as RFC 8628 asks, after a broken connection
            continue
        if answer.is_success:
            return _login(way, _decoded(Granted, answer), "")
        match _problem(answer):
            case "authorization_pending":
                continue
            case "slow_down":
                pause_s += 5.0
            case "expired_token":
                break
            case problem:
                raise AuthenticationError(f"{way.issuer} refused the login ({problem}).", LOGIN_AGAIN)
    raise AuthenticationError("The code was not confirmed in time.", LOGIN_AGAIN)


def save(pool: str, login: StoredLogin | None) -> None:
    """Keep the login of a pool; None removes it."""
    with _locked() as logins:
        kept = {url: one for url, one in logins.items() if url != pool}
        _write(kept if login is None else {**kept, pool: login})


def saved(pool: str) -> StoredLogin | None:
    """Return what is kept, as it is."""
    return _read().get(pool)


def current_token(pool: str) -> str | None:
    """Return the token of the login to a pool, renewed where it ends soon; None without a login. Raises
    AuthenticationError when it cannot be renewed."""
    known = saved(pool)
    if known is None or not _ends_soon(known):
        return None if known is None else known.token
    with _locked() as logins:
        known = logins.get(pool)
        if known is None or not _ends_soon(known):  # another program was faster
            return None if known is None else known.token
        renewed = _renewed(known)
        _write({**logins, pool: renewed})
    return renewed.token


def revoke(login: StoredLogin) -> bool:
    """Ask the issuer to end a login, and return whether it did."""
    try:
        issuer = discover(login.way)
        form = {"client_id": login.way.client_id, "token": login.refresh_token or login.token}
        answer = _post(issuer.revocation_endpoint, form)
    except (PoolError, httpx.HTTPError, httpx.InvalidURL):
        return False
    return answer.is_success


def _ends_soon(login: StoredLogin) -> bool:
    margin_s = min(RENEW_BEFORE_S, (login.expires_at - login.made_at) / 3)
    return time.time() > login.expires_at - margin_s


def _renewed(login: StoredLogin) -> StoredLogin:
    """Exchange the refresh token. While the token still counts, an issuer may stay silent."""
    try:
        if not login.refresh_token:
            raise AuthenticationError("The login has ended.", LOGIN_AGAIN)
        way = login.way
        form = {
            "grant_type": "refresh_token",
            "refresh_token": login.refresh_token,
            "client_id": way.client_id,
        }
        endpoint = discover(way).token_endpoint
        granted = _answer(Granted, lambda: _post(endpoint, form))
    except PoolError as error:
        if time.time() < login.expires_at:
            return login
        raise AuthenticationError(f"The login could not be renewed: {error.message}", LOGIN_AGAIN) from None
    return _login(way, granted, login.refresh_token)


def _login(way: LoginWay, granted: Granted, refresh_token: str) -> StoredLogin:
    """Choose the token that is made for the pool: that of access, or that of identity."""
    offered = [one for one in (granted.access_token, granted.id_token) if one]
    token = next((one for one in offered if way.audience in _audience(one)), granted.access_token)
    now_s = time.time()
    ends = claims_of(token).get("exp")
    expires_at = float(ends) if isinstance(ends, int | float) else now_s + granted.expires_in
    return StoredLogin(way, token, granted.refresh_token or refresh_token, now_s, expires_at)


def claims_of(token: str) -> Mapping[str, object]:
    """Read what a JSON Web Token says of itself, unproven; nothing for another kind of token."""
    try:
        payload = token.split(".")[1]
        padded = payload + "=" * (-len(payload) % 4)
        return msgspec.json.decode(base64.urlsafe_b64decode(padded), type=dict[str, object])
    except (IndexError, ValueError):
        return {}


def _audience(token: str) -> tuple[object, ...]:
    found = claims_of(token).get("aud")
    return tuple(found) if isinstance(found, list) else (found,)


def _post(url: str, form: Mapping[str, str]) -> httpx.Response:
    return httpx.post(url, data=form, timeout=TIMEOUT_S, trust_env=False, proxy=proxy_for(url))


def _answer(kind: type[Kind], ask: Callable[[], httpx.Response]) -> Kind:
    try:
        answer = ask()
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise PoolError(f"The issuer does not answer ({error}).", "Try again.") from None
    if not answer.is_success:
        raise PoolError(f"The issuer refused: {_problem(answer)}.", LOGIN_AGAIN)
    return _decoded(kind, answer)


def _decoded(kind: type[Kind], answer: httpx.Response) -> Kind:
    try:
        return msgspec.json.decode(answer.content, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise PoolError(f"The issuer's answer is not understood: {error}.", LOGIN_AGAIN) from None


def _problem(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["error"])[:100]
    except (ValueError, KeyError, TypeError):
        return f"HTTP {answer.status_code}"


@contextmanager
def _locked() -> Iterator[dict[str, StoredLogin]]:
    path = logins_path()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
    with os.fdopen(descriptor, "w") as file:
        lock(file)
        yield _read()


def _read() -> dict[str, StoredLogin]:
    path = logins_path()
    try:
        status = path.stat()
        content = path.read_bytes()
    except FileNotFoundError:
        return {}
    if not is_private(status):
        raise PoolError(
            f"{path} can be read by other users, so its tokens are no secrets.", f"Delete {path}."
        )
    try:
        return msgspec.json.decode(content, type=dict[str, StoredLogin])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise PoolError(
            f"{path} is no file of logins: {error}.", f"Delete {path}, and log in again."
        ) from None


def _write(logins: Mapping[str, StoredLogin]) -> None:
    path = logins_path()
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{FILE_NAME}-")  # of mode 0600
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(msgspec.json.encode(logins))
        os.replace(name, path)
    except OSError:
        os.unlink(name)
        raise
