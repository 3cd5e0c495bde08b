"""Tokens with names, roles, ends and successors."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa
from pool_kit import Client, Wire, act, http, new_user, rest, running_pool
from real_pool import wait_for
from websockets.exceptions import ConnectionClosed

from djinn_lab.errors import AuthenticationError, OptionError, PoolError, Refused
from djinn_lab.pool.authentication import TOKEN_DAYS, Authentication, Role, new_token, token_digest
from djinn_lab.pool.database.engine import make_engine
from djinn_lab.pool.database.store import Store
from djinn_lab.pool.database.users import read_tokens
from djinn_lab.protocol.messages import RequestRefused
from djinn_lab.protocol.runtime_file import RuntimeInfo

DAY_S = 86_400.0


class Clock:
    def __init__(self) -> None:
        self.at_s = 1e9

    def now_s(self) -> float:
        return self.at_s


def test_an_expired_token_is_refused_by_name() -> None:
    clock = Clock()
    users = Authentication("owner's", clock.now_s)
    users.add("ann", "user")
    _, secret = users.issue("ann", "laptop", Role.USER, clock.at_s + 10)
    assert users.user_of(f"Bearer {secret}") is not None
    clock.at_s += 10
    assert users.user_of(f"Bearer {secret}") is None
    assert "'laptop' of ann has expired" in users.denial(f"Bearer {secret}").detail
    assert users.denial("Bearer other").detail == "The token is missing or wrong."


def test_a_rotated_token_and_its_successor_overlap() -> None:
    clock = Clock()
    users = Authentication("owner's", clock.now_s)
    users.add("ann", "user")
    first, old = users.issue("ann", "laptop", Role.USER, clock.at_s + 90 * DAY_S)
    _, new = users.rotate("ann", "laptop", None, overlap_s=60)
    assert [token.name for token in users.tokens("ann")] == ["laptop.old", "laptop"]
    assert users.user_of(f"Bearer {old}") is not None
    clock.at_s += 61
    assert users.user_of(f"Bearer {old}") is None
    assert users.user_of(f"Bearer {new}") is not None
    assert not users.is_valid(first.digest)
    assert users.tokens("ann")[0].expires_at == pytest.approx(first.expires_at)


def test_a_rotation_never_lengthens_the_old_token() -> None:
    clock = Clock()
    users = Authentication("owner's", clock.now_s)
    users.add("ann", "user")
    _, old = users.issue("ann", "laptop", Role.USER, clock.at_s + 10)
    users.rotate("ann", "laptop", None, overlap_s=60)
    clock.at_s += 11
    assert users.user_of(f"Bearer {old}") is None


@pytest.mark.processes
def test_users_make_rotate_and_revoke_their_own_tokens(shared_pool: RuntimeInfo) -> None:
    name, token = new_user(shared_pool)
    with closing(rest(shared_pool, token)) as ann:
        (first,) = ann.tokens()
        assert (first.user, first.name, first.role, first.in_use) == (name, "first", "user", True)
        assert first.expires_at == pytest.approx(first.created_at + TOKEN_DAYS * DAY_S, abs=5)
        made = ann.make_token("board", role="viewer", days=1)
        with closing(rest(shared_pool, made.secret)) as board:
            assert board.status().role == "viewer"
            with pytest.raises(OptionError, match="viewer at most"):
                board.make_token("more", role="user")
            with pytest.raises(Refused, match="changes none that may do more"):
                board.rotate_token(name, "first")
        with pytest.raises(OptionError, match="has a token 'board' already"):
            ann.make_token("board")
        with pytest.raises(OptionError, match="user at most"):
            ann.make_token("chief", role="admin")
        again = ann.rotate_token(name, "board", overlap_s=0)
        for secret, works in ((made.secret, False), (again.secret, True)):
            with http(shared_pool, secret) as web:
                assert web.get("/v1/status").is_success == works
        ann.revoke_token(name, "board")
        with http(shared_pool, again.secret) as web:
            assert web.get("/v1/status").status_code == 401
        with pytest.raises(PoolError, match="has no token 'board'"):
            ann.revoke_token(name, "board")


@pytest.mark.processes
def test_a_limited_token_makes_and_changes_none_that_may_do_more(shared_pool: RuntimeInfo) -> None:
    name, token = new_user(shared_pool)
    with closing(rest(shared_pool, token)) as ann:
        made = ann.make_token("manager", scopes=["admin", "read"])
        assert made.token.scopes == ("admin", "read")
        with pytest.raises(OptionError, match="'all' is not a scope; there are read, cells"):
            ann.make_token("more", scopes=["all"])
        with closing(rest(shared_pool, made.secret)) as manager:
            assert manager.make_token("alike").token.scopes == ("admin", "read")
            assert manager.make_token("less", scopes=["read"]).token.scopes == ("read",)
            with pytest.raises(OptionError, match="makes none that may do more"):
                manager.make_token("more", scopes=["cells"])
            with pytest.raises(Refused, match="changes none that may do more"):
                manager.rotate_token(name, "first")
            again = manager.rotate_token(name, "manager", overlap_s=0)
            assert again.token.scopes == ("admin", "read")
        with closing(rest(shared_pool, again.secret)) as manager:
            with pytest.raises(Refused, match="scope queue; this one has admin and read"):
                manager.cancel("none")


@pytest.mark.processes
def test_admins_have_a_say_in_the_tokens_of_all_and_others_do_not(shared_pool: RuntimeInfo) -> None:
    (ann, token), (bob, _) = new_user(shared_pool), new_user(shared_pool)
    with closing(rest(shared_pool, token)) as client:
        for forbidden in (
            lambda: client.make_token("mine", user=bob),
            lambda: client.rotate_token(bob, "first"),
            lambda: client.revoke_token(bob, "first"),
        ):
            with pytest.raises(Refused, match="needs the role admin"):
                forbidden()
    with closing(rest(shared_pool)) as owner:
        assert {(ann, "first"), (bob, "first")} <= {(one.user, one.name) for one in owner.tokens()}
        owner.revoke_token(ann, "first")
    with pytest.raises(AuthenticationError, match="missing or wrong"):
        rest(shared_pool, token).status()


@pytest.mark.processes
def test_an_ended_token_closes_its_websocket_and_the_session_continues_with_another(
    shared_pool: RuntimeInfo,
) -> None:
    name, token = new_user(shared_pool)
    second = rest(shared_pool).make_token("second", user=name).secret
    with Client(shared_pool, token) as client:
        client.run(act("", keep=True))
        rest(shared_pool).revoke_token(name, "first")
        refused = client.receive()
        assert isinstance(refused, RequestRefused)
        assert refused.kind == "token"
        assert "expired or was revoked" in refused.message
        with Client(shared_pool, second, session=client.session) as again:
            assert again.welcome.resumed


@pytest.mark.processes
def test_new_role_holds_for_tokens_at_once_but_not_above_what_they_were_made_for(
    shared_pool: RuntimeInfo,
) -> None:
    name, token = new_user(shared_pool)
    owner, ann = rest(shared_pool), rest(shared_pool, token)
    board = rest(shared_pool, ann.make_token("board", role="viewer").secret)
    again = rest(shared_pool, ann.make_token("again").secret)
    limited = rest(shared_pool, owner.make_token("limited", user=name, role="user").secret)
    for role, limit in (("operator", "user"), ("viewer", "viewer"), ("admin", "user")):
        changed = owner.set_role(name, role)
        assert (changed.name, changed.role) == (name, role)
        roles = [client.status().role for client in (ann, again, limited, board)]
        assert roles == [role, role, limit, "viewer"]
    assert {one.name: one.role for one in ann.tokens() if one.user == name} == {
        "first": "admin",
        "again": "admin",
        "limited": "user",
        "board": "viewer",
    }
    with pytest.raises(Refused, match="changes none that may do more"):
        limited.rotate_token(name, "again")
    assert rest(shared_pool, limited.make_token("derived").secret).status().role == "user"
    rows = owner.audit(action=f"PATCH /v1/users/{name}")
    assert next(row.body for row in rows if row.status == 200) == '{"role":"admin"}'


@pytest.mark.processes
def test_bad_changes_of_a_role_are_refused(shared_pool: RuntimeInfo) -> None:
    name, token = new_user(shared_pool)
    owner = rest(shared_pool)
    with pytest.raises(OptionError, match="not a role"):
        owner.set_role(name, "king")
    with pytest.raises(OptionError, match="stays admin"):
        owner.set_role(owner.status().user, "user")
    with pytest.raises(PoolError, match="There is no user"):
        owner.set_role("missing", "user")
    with pytest.raises(Refused, match="needs the role admin"):
        rest(shared_pool, token).set_role(name, "admin")
    assert rest(shared_pool, token).status().role == "user"


@pytest.mark.processes
def test_user_who_becomes_viewer_loses_cells_and_keeps_the_session(shared_pool: RuntimeInfo) -> None:
    name, token = new_user(shared_pool)
    owner = rest(shared_pool)
    with Client(shared_pool, token) as client:
        client.run(act("", keep=True))
        job = client.submit(act("sleep 60"))
        client.until(job, "RUNNING")
        owner.set_role(name, "viewer")
        while not isinstance(refused := client.receive(), RequestRefused):
            pass
        assert "has the role viewer now" in refused.message
        wait_for(lambda: owner.job(job).state == "CANCELLED")
        owner.set_role(name, "user")
        with Client(shared_pool, token, session=client.session) as again:
            assert again.welcome.resumed
            assert again.run(act("")).outcome == "done"


@pytest.mark.processes
def test_a_short_token_closes_its_websocket_by_itself(shared_pool: RuntimeInfo) -> None:
    name, _ = new_user(shared_pool)
    short = rest(shared_pool).make_token("short", user=name, days=2 / DAY_S).secret
    with Client(shared_pool, short) as client:
        refused = client.receive()
        assert isinstance(refused, RequestRefused)
    with pytest.raises(AuthenticationError, match=r"'short' of .* has expired"):
        rest(shared_pool, short).status()


@pytest.mark.processes
def test_tokens_survive_the_pool_and_end_with_their_user(tmp_path: Path, database: str) -> None:
    with running_pool(tmp_path, "cpu:1", database=database) as info:
        name, token = new_user(info)
        board = rest(info, token).make_token("board", role="viewer", scopes=["queue"]).secret
        assert rest(info).set_role(name, "operator").role == "operator"
    with running_pool(tmp_path, "cpu:1", database=database) as info:
        assert rest(info, board).status().role == "viewer"
        assert rest(info, token).status().role == "operator"
        with pytest.raises(Refused, match="needs a token with the scope read"):
            rest(info, board).usage()
        with Wire(info, token) as wire:
            wire.hello()
            rest(info).delete_user(name)
            with pytest.raises(ConnectionClosed, match=f"{name} was removed by root"):
                while True:
                    wire.receive()
        with pytest.raises(AuthenticationError):
            rest(info, board).status()


def test_the_token_of_an_older_database_becomes_the_first_and_ends(database: str) -> None:
    secret = new_token()
    store = Store(database)
    store.opened()
    store.close()
    engine = make_engine(database)
    with engine.begin() as connection:
        for statement in (
            "DROP TABLE users",
            "DROP TABLE tokens",
            "ALTER TABLE jobs DROP COLUMN resume",
            "CREATE TABLE users (name VARCHAR NOT NULL, role VARCHAR NOT NULL, "
            "token_digest VARCHAR NOT NULL, account VARCHAR, PRIMARY KEY (name), UNIQUE (token_digest))",
            f"INSERT INTO users VALUES ('ann', 'user', '{token_digest(secret)}', 'vision')",
            "UPDATE schema_version SET version = 3",
        ):
            connection.execute(sa.text(statement))
    engine.dispose()
    store = Store(database)
    store.opened()
    (token,) = store.submit(read_tokens).result()
    store.close()
    assert (token.user, token.name, token.role, token.digest) == (
        "ann",
        "first",
        Role.USER,
        token_digest(secret),
    )
    assert token.expires_at == pytest.approx(token.created_at + TOKEN_DAYS * DAY_S)
    assert token.scopes is None
