"""Users of an OpenID Connect issuer: a real pool and a real issuer, both on loopback."""

from __future__ import annotations

import base64
import hmac
import os
import stat
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from issuer_kit import CLIENT, Issuer
from joserfc import jwk, jwt
from pool_kit import Client, act, http, rest, running_pool
from typer.testing import CliRunner
from websockets.exceptions import InvalidStatus

from djinn_lab.cli.app import build_app
from djinn_lab.client import logins
from djinn_lab.client.credentials import token_source
from djinn_lab.client.rest import PoolClient
from djinn_lab.errors import AuthenticationError, OptionError, Refused
from djinn_lab.pool.identity.oidc import LEEWAY_S
from djinn_lab.pool.identity.roles import RoleMapping
from djinn_lab.pool.identity.settings import IdentitySettings, OidcSettings, checked_address
from djinn_lab.protocol.messages import RequestRefused
from djinn_lab.protocol.runtime_file import RuntimeInfo

pytestmark = pytest.mark.processes

ROLES = RoleMapping((("admin", "chiefs"), ("user", "staff"), ("viewer", "guests")))


def settings(issuer: Issuer, **changes: Any) -> str:
    said = {"audience": CLIENT, "role_claim": "groups", "roles": ROLES} | changes
    return IdentitySettings(OidcSettings(issuer.url, CLIENT, **said)).encoded()


def signed_with_the_public_key(issuer: Issuer, **claims: Any) -> str:
    """Make a token whose secret is public, by HS256."""
    body = issuer.token(**claims).split(".")[1]
    header = base64.urlsafe_b64encode(b'{"alg":"HS256","kid":"first"}').rstrip(b"=").decode()
    secret = issuer.keys[0].as_pem(private=False)
    code = hmac.new(secret, f"{header}.{body}".encode(), "sha256").digest()
    return f"{header}.{body}.{base64.urlsafe_b64encode(code).rstrip(b'=').decode()}"


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    with Issuer() as made:
        yield made


@pytest.fixture(scope="module")
def pool(issuer: Issuer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RuntimeInfo]:
    with running_pool(tmp_path_factory.mktemp("oidc"), "cpu:1", identity=settings(issuer)) as info:
        yield info


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where logins are kept. No runtime file is in reach."""
    monkeypatch.setenv("DJINN_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("DJINN_RUNTIME_DIR", str(tmp_path))
    return tmp_path / "config"


def test_user_name_and_role_come_from_the_claims(issuer: Issuer, pool: RuntimeInfo) -> None:
    cases = [
        ({"preferred_username": "ann", "groups": ["staff"]}, ("oidc:ann", "user")),
        ({"preferred_username": "bo", "groups": ["guests", "chiefs"]}, ("oidc:bo", "admin")),
        ({"sub": "auth0|7", "groups": "guests"}, ("oidc:sub%3Dauth0%7C7", "viewer")),
        ({"preferred_username": "sub=1", "groups": ["staff"]}, ("oidc:sub%3D1", "user")),
        ({"preferred_username": "a/b c", "groups": ["staff"]}, ("oidc:a%2Fb%20c", "user")),
        ({"iss": f"{issuer.url}/", "groups": ["staff"]}, ("oidc:sub%3D1", "user")),
        ({"aud": ["other", CLIENT], "groups": ["staff"]}, ("oidc:sub%3D1", "user")),
    ]
    for claims, expected in cases:
        with closing(rest(pool, issuer.token(**claims))) as client:
            status = client.status()
        assert (status.user, status.role) == expected


def test_an_identity_provider_never_names_a_local_user(issuer: Issuer, pool: RuntimeInfo) -> None:
    owner = rest(pool).status().user
    token = issuer.token(preferred_username=owner, groups=["staff"])
    with closing(rest(pool, token)) as client:
        assert client.status().user == f"oidc:{owner}"
        with pytest.raises(Refused, match="has no tokens of this pool"):
            client.make_token("lasting")
    with pytest.raises(OptionError, match="is not a user name"):
        rest(pool).create_user("oidc:ann")


def test_tokens_that_are_not_good_are_refused_with_the_reason(issuer: Issuer, pool: RuntimeInfo) -> None:
    now = time.time()
    stranger = jwk.RSAKey.generate_key(2048, {"kid": "first"})
    unknown = jwk.RSAKey.generate_key(2048, {"kid": "unknown"})
    good = issuer.token(groups=["staff"])
    bad = {
        issuer.token(iss="https://elsewhere", groups=["staff"]): "iss",
        issuer.token(iss=None, groups=["staff"]): "iss",
        issuer.token(aud="another", groups=["staff"]): "aud",
        issuer.token(aud=None, groups=["staff"]): "aud",
        issuer.token(exp=now - LEEWAY_S - 5, groups=["staff"]): "expired",
        issuer.token(exp=None, groups=["staff"]): "exp",
        issuer.token(exp="soon", groups=["staff"]): "exp",
        issuer.token(nbf=now + LEEWAY_S + 60, groups=["staff"]): "not yet valid",
        issuer.token(sub=None, groups=["staff"]): "sub",
        issuer.token(sub=7, groups=["staff"]): "sub",
        issuer.token(groups=["others"]): "in no group that has a role",
        issuer.token(groups={"staff": 1}): "in no group that has a role",
        issuer.token(key=stranger, groups=["staff"]): "not good",
        issuer.token(key=unknown, groups=["staff"]): "a key that its issuer does not have",
        good[:-6] + "AAAAAA": "not good",
        good.rpartition(".")[0] + ".": "not good",
        signed_with_the_public_key(issuer, groups=["staff"]): "signed with RS256",
        jwt.encode({"alg": "PS256", "kid": "first"}, {}, issuer.keys[0], algorithms=["PS256"]): "signed with",
        "eyJhbGciOiJub25lIn0.e30.": "signed with RS256 or ES256",
        "a.b.c": "not good",
        "..": "not good",
    }
    for token, words in bad.items():
        with http(pool, token) as web:
            answer = web.get("/v1/status")
        assert (answer.status_code, words in answer.json()["detail"]) == (401, True), answer.json()
        with pytest.raises(InvalidStatus):
            Client(pool, token)
    with http(pool, good) as web:
        assert web.get("/v1/status").status_code == 200
    within = issuer.token(exp=now - 5, nbf=now + 5, groups=["staff"])
    with http(pool, within) as web:
        assert web.get("/v1/status").status_code == 200


def test_es256_and_a_rotated_key_are_accepted_without_a_restart(tmp_path: Path) -> None:
    with Issuer() as issuer, running_pool(tmp_path, "cpu:1", identity=settings(issuer)) as info:
        with http(info, issuer.token(groups=["staff"])) as web:
            assert web.get("/v1/status").status_code == 200
        for _ in range(3):
            with http(info, issuer.token(groups=["staff"])) as web:
                assert web.get("/v1/status").status_code == 200
        assert issuer.asked.count("/keys") == 1
        issuer.keys.append(jwk.ECKey.generate_key("P-256", {"kid": "second"}))
        token = issuer.token(key=issuer.keys[1], alg="ES256", groups=["staff"])
        deadline_s = time.monotonic() + 60
        with http(info, token) as web:
            while web.get("/v1/status").status_code != 200:  # keys are fetched every ten seconds at most
                assert time.monotonic() < deadline_s
                time.sleep(1)
        issuer.broken = True
        with http(info, issuer.token(groups=["staff"])) as web:
            assert web.get("/v1/status").status_code == 200, "a known key needs no issuer"


def test_issuer_that_is_down_admits_no_user_and_is_named(tmp_path: Path) -> None:
    with Issuer() as issuer, running_pool(tmp_path, "cpu:1", identity=settings(issuer)) as info:
        issuer.broken = True
        with http(info, issuer.token(groups=["staff"])) as web:
            answer = web.get("/v1/status")
        assert answer.status_code == 401
        assert "does not answer" in answer.json()["detail"]
        with http(info) as web:
            assert web.get("/v1/status").status_code == 200


def test_groups_may_lie_deep_and_a_default_role_is_given(tmp_path: Path) -> None:
    with Issuer() as issuer:
        deep = settings(issuer, role_claim="realm.roles", roles=RoleMapping((("admin", "chiefs"),), "viewer"))
        with running_pool(tmp_path, "cpu:1", identity=deep) as info:
            roles = [
                rest(info, issuer.token(**claims)).status().role
                for claims in ({"realm": {"roles": ["chiefs"]}}, {"realm": {}}, {"groups": ["chiefs"]})
            ]
    assert roles == ["admin", "viewer", "viewer"]


def test_a_token_that_ends_closes_its_websocket_and_the_next_one_resumes(
    issuer: Issuer, pool: RuntimeInfo
) -> None:
    claims = {"preferred_username": "cy", "groups": ["staff"]}
    short = issuer.token(exp=time.time() - LEEWAY_S + 3, **claims)
    with Client(pool, short) as client:
        client.run(act("", keep=True))
        refused = client.receive()
        assert isinstance(refused, RequestRefused)
        assert refused.kind == "token"
        with Client(pool, issuer.token(**claims), session=client.session) as again:
            assert again.welcome.resumed
    other = issuer.token(preferred_username="dee", groups=["staff"])
    with pytest.raises(AssertionError, match="belongs to another user"):
        Client(pool, other, session=client.session)


def test_audit_names_users_and_the_way_they_came(issuer: Issuer, pool: RuntimeInfo) -> None:
    token = issuer.token(preferred_username="eve", groups=["staff"])
    with Client(pool, token):
        pass
    with http(pool, issuer.token(preferred_username="fay", groups=[])) as web:
        assert web.get("/v1/status").status_code == 401
    with closing(rest(pool)) as owner:
        mine = owner.audit(user="oidc:eve")
        refused = [row.body for row in owner.audit(1000, refused=True)]
    found = {row.action: row.body for row in mine}
    assert found["login"].startswith("by oidc as user, from 127.0.0.1")
    assert found["session opened"].endswith("by a login by oidc")
    assert any("oidc:fay is in no group" in body and "of oidc:fay" in body for body in refused)
    assert token not in str(mine) + str(refused)


def test_login_by_the_device_flow_is_stored_for_this_user_alone(
    issuer: Issuer, pool: RuntimeInfo, folder: Path
) -> None:
    issuer.next_grant.answers[:] = ["authorization_pending", "authorization_pending"]
    done = CliRunner().invoke(build_app("login"), ["login", "--pool", pool.url], catch_exceptions=False)
    assert "WDJB-MJHT" in done.output
    assert "as oidc:ann (user)" in done.output
    kept = folder / "logins.json"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert token_source(pool.url)() == logins.saved(pool.url).token  # type: ignore[union-attr]
    kept.chmod(0o644)
    with pytest.raises(Exception, match="can be read by other users"):
        token_source(pool.url)()
    kept.chmod(0o600)
    out = CliRunner().invoke(build_app("logout"), ["logout", "--pool", pool.url], catch_exceptions=False)
    assert "Logged out" in out.output
    assert "/revoke" in issuer.asked
    with pytest.raises(AuthenticationError, match="no token for the pool"):
        token_source(pool.url)()


def test_the_device_flow_slows_down_and_ends_when_it_is_refused(issuer: Issuer, pool: RuntimeInfo) -> None:
    from djinn_lab.client.credentials import ways_in

    [way] = [one for one in ways_in(pool.url) if one.way == "oidc"]
    found = logins.discover(way)
    issuer.next_grant.answers[:] = ["slow_down", "authorization_pending", "access_denied"]
    pauses: list[float] = []
    with pytest.raises(AuthenticationError, match="access_denied"):
        logins.finish(way, found, logins.begin(way, found), pauses.append)
    assert pauses == [0.01, 5.01, 5.01]
    issuer.next_grant.answers[:] = ["authorization_pending"] * 100
    code = logins.begin(way, found)
    pauses.clear()
    with pytest.raises(AuthenticationError, match="not confirmed in time"):
        logins.finish(way, found, logins.DeviceCode(code.device_code, "X", "", 0.05, 0.01), pauses.append)
    issuer.next_grant.answers.clear()


def test_a_login_is_renewed_once_however_many_ask(issuer: Issuer, pool: RuntimeInfo, folder: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    from djinn_lab.client.credentials import ways_in

    [way] = [one for one in ways_in(pool.url) if one.way == "oidc"]
    found = logins.discover(way)
    login = logins.finish(way, found, logins.begin(way, found), lambda _: None)
    ending = logins.StoredLogin(way, "old", login.refresh_token, time.time() - 100, time.time() + 1)
    logins.save(pool.url, ending)
    before = issuer.asked.count("/token")
    with ThreadPoolExecutor(4) as threads:
        tokens = set(threads.map(lambda _: logins.current_token(pool.url), range(8)))
    assert issuer.asked.count("/token") == before + 1
    [token] = tokens
    assert PoolClient(pool.url, token or "").status().user == "oidc:ann"
    used = logins.StoredLogin(way, "old", login.refresh_token, time.time() - 100, time.time() - 1)
    logins.save(pool.url, used)
    with pytest.raises(AuthenticationError, match="could not be renewed"):
        logins.current_token(pool.url)


def test_options_that_do_not_go_together_are_refused() -> None:
    runner = CliRunner()
    for arguments, words in (
        (["--oidc-issuer", "https://x"], "An issuer has a client"),
        (["--oidc-issuer", "http://x.example", "--oidc-client-id", "c"], "in the clear"),
        (["--oidc-issuer", "https://x", "--oidc-client-id", "c"], "would have a role"),
        (["--oidc-issuer", "https://x", "--oidc-client-id", "c", "--oidc-roles", "god=all"], "is not a role"),
        (["--oidc-issuer", "https://x", "--oidc-client-id", "c", "--oidc-roles", "admin"], "not ROLE=GROUP"),
        (["--jupyterhub-api", "hub"], "not the address of a server"),
        (["--identity-provider", "nosuch"], "no identity provider 'nosuch'"),
    ):
        done = runner.invoke(build_app("pool"), ["pool", "start", *arguments])
        assert isinstance(done.exception, OptionError), done.output
        assert words in str(done.exception)
    assert checked_address("--x", "http://localhost:1/a/", only_https=True) == "http://localhost:1/a"
    assert os.environ.get("DJINN_TOKEN") is None
