"""Roles and scopes times actions: one table for every request and message, with own objects and those of
others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import NamedTuple, get_args

import httpx
import msgspec
import pytest
from pool_kit import Client, Wire, act, http, rest, running_pool
from websockets.exceptions import ConnectionClosed, InvalidStatus

from djinn_lab.pool.authentication import DAY_S, Role
from djinn_lab.pool.scopes import SCOPES, SESSION_SOCKET, TokenScope
from djinn_lab.protocol import messages
from djinn_lab.protocol.rest.notebooks import NewNotebook
from djinn_lab.protocol.runtime_file import RuntimeInfo

pytestmark = pytest.mark.processes

ONE_CELL = msgspec.Raw(
    b'{"cells": [{"cell_type": "code", "id": "a", "source": "1", "metadata": {}, "outputs": [], '
    b'"execution_count": null}], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}'
)

VIEWER, USER, OPERATOR, ADMIN = Role.VIEWER, Role.USER, Role.OPERATOR, Role.ADMIN
NO_ROLE = None
"""For objects of others: not even admins; where there is no object: it needs no token."""


class Needs(NamedTuple):
    """Roles that a request needs: for what belongs to the asking user, and to another one. ``scopes``: of a
    token that is limited, any one of them."""

    own: Role | None
    others: Role | None
    scopes: str = ""


ANY = " ".join(TokenScope)
UNLIMITED = "none"
"""A token with scopes changes none without."""


def all_of(role: Role | None, scopes: str = "") -> Needs:
    """Return the needs of a request about nothing that a user owns."""
    return Needs(role, role, scopes)


REQUESTS = {
    "GET /v1/alive": all_of(NO_ROLE),
    "GET /v1/login": all_of(NO_ROLE),
    "GET /v1/status": all_of(VIEWER, ANY),
    "GET /v1/snapshot": all_of(VIEWER, "read"),
    "GET /v1/events": all_of(VIEWER, "read"),
    "GET /metrics": all_of(VIEWER, "read"),
    "GET /openapi.json": all_of(VIEWER, "read"),
    "GET /v1/audit": all_of(ADMIN, "admin"),
    "GET /v1/audit/head": all_of(ADMIN, "admin"),
    "POST /v1/shutdown": all_of(ADMIN, "admin"),
    "GET /v1/sessions": all_of(VIEWER, "cells read"),
    "GET /v1/memory": all_of(VIEWER, "read"),
    "GET /v1/costs": all_of(VIEWER, "read"),
    "POST /v1/sessions/{session}/phase": Needs(USER, OPERATOR, "cells"),
    "DELETE /v1/sessions/{session}": Needs(USER, OPERATOR, "cells"),
    "PUT /v1/blobs": all_of(USER, "cells"),
    "PUT /v1/blobs/{digest}": all_of(USER, "cells"),
    "POST /v1/blobs/{digest}/pieces": all_of(USER, "cells"),
    "PUT /v1/blobs/{digest}/pieces": all_of(USER, "cells"),
    "GET /v1/results": all_of(USER, "cells"),
    "DELETE /v1/results": all_of(USER, "cells"),
    "GET /v1/results/{name}": all_of(USER, "cells"),  # those of others are not found
    "DELETE /v1/results/{name}": all_of(USER, "cells"),
    "GET /v1/link": all_of(USER, "cells"),
    "PUT /v1/link": all_of(USER, "cells"),
    "GET /v1/users": all_of(ADMIN, "admin"),
    "POST /v1/users": all_of(ADMIN, "admin"),
    "PATCH /v1/users/{name}": all_of(ADMIN, "admin"),
    "DELETE /v1/users/{name}": all_of(ADMIN, "admin"),
    "GET /v1/tokens": all_of(VIEWER, "admin read"),  # own ones; an admin sees all
    "POST /v1/tokens": all_of(VIEWER, "admin"),
    "POST /v1/tokens/{owner}/{name}/rotate": Needs(USER, ADMIN, UNLIMITED),  # the role of the token
    "DELETE /v1/tokens/{owner}/{name}": Needs(USER, ADMIN, UNLIMITED),
    "GET /v1/jobs": all_of(VIEWER, "queue read"),
    "GET /v1/job-pages": all_of(VIEWER, "queue read"),
    "GET /v1/jobs/{job}": all_of(VIEWER, "queue read"),  # without the code of others
    "POST /v1/jobs/{job}/cancel": Needs(USER, OPERATOR, "queue"),
    "POST /v1/jobs/{job}/preempt": Needs(USER, OPERATOR, "queue"),
    "GET /v1/jobs/{job}/program": Needs(VIEWER, ADMIN, "read"),
    "GET /v1/jobs/{job}/programs": Needs(VIEWER, ADMIN, "read"),
    "GET /v1/jobs/{job}/graph": Needs(VIEWER, ADMIN, "read"),
    "GET /v1/jobs/{job}/schedule": Needs(VIEWER, ADMIN, "read"),
    "GET /v1/jobs/{job}/why": all_of(VIEWER, "queue read"),
    "GET /v1/jobs/{job}/what-if": all_of(VIEWER, "queue read"),
    "GET /v1/queue": all_of(VIEWER, "queue read"),
    "GET /v1/usage": all_of(VIEWER, "read"),
    "GET /v1/history": all_of(VIEWER, "read"),
    "PUT /v1/accounts/{account}": all_of(ADMIN, "admin"),
    "POST /v1/devices/{device}/cordon": all_of(OPERATOR, "queue"),
    "POST /v1/devices/{device}/uncordon": all_of(OPERATOR, "queue"),
    "POST /v1/devices/{device}/calibrate": all_of(OPERATOR, "queue"),
    "PUT /v1/devices/{device}/description": all_of(OPERATOR, "queue"),
    "PUT /v1/queue/policy": all_of(ADMIN, "admin"),
    "GET /v1/reservations": all_of(VIEWER, "queue read"),
    "PUT /v1/reservations/{name}": all_of(OPERATOR, "queue"),
    "DELETE /v1/reservations/{name}": all_of(OPERATOR, "queue"),
    "POST /v1/notebooks": all_of(USER, "notebooks"),
    "GET /v1/notebooks": all_of(VIEWER, "notebooks read"),
    "GET /v1/notebooks/{notebook}": all_of(VIEWER, "notebooks read"),
    "GET /v1/notebooks/{notebook}/result": Needs(VIEWER, ADMIN, "notebooks read"),
    "POST /v1/notebooks/{notebook}/cancel": Needs(USER, OPERATOR, "notebooks"),
    "POST /v1/checkpoints": Needs(USER, ADMIN, "notebooks"),
    "GET /v1/data": all_of(VIEWER, "notebooks read"),
    "POST /v1/data": all_of(USER, "notebooks"),
    "DELETE /v1/data/{name}": all_of(USER, "notebooks"),  # that of others is not found
}
"""``notebook`` is called ``job`` in the routes."""

MESSAGES = {
    "Hello": "opens a session, or resumes one of the same user",
    "SubmitSegment": "queues a cell of this session",
    "QueryBlobs": "asks for uploads of the same user",
    "BlobStored": "adds an upload",
    "FinishJob": "ends a job of this session",
    "CancelJob": "cancels a job of this session",
    "SignalPhase": "of this session",
    "ReleaseValues": "of this session",
    "CloseSession": "this session",
}
"""All need the role user; no role reaches the sessions of others this way."""


@dataclass
class Cast:
    """``mine``: tokens of the user who owns the objects, by role; ``others``: of other users;
    ``limited``: of the admin, by their only scope."""

    info: RuntimeInfo
    mine: dict[Role, str]
    others: dict[Role, str]
    limited: dict[TokenScope, str]
    strangers: list[str | None]

    @contextmanager
    def objects(self) -> Iterator[dict[str, str]]:
        """Make fresh objects of the user ann, and return what routes call them."""
        with Client(self.info, self.mine[USER]) as client:
            job = client.submit(act("sleep 60"))
            client.until(job, "RUNNING")
            name = f"t{client.session[:8]}"
            made = rest(self.info, self.mine[USER])
            made.make_token(name)
            yield {"session": client.session, "job": job, "owner": "ann", "name": name}
            if name in [token.name for token in made.tokens()]:
                made.revoke_token("ann", name)
            made.close()
            with suppress(ConnectionClosed):
                client.send(messages.CloseSession())


@pytest.fixture(scope="module")
def cast(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cast]:
    with running_pool(tmp_path_factory.mktemp("matrix"), "cpu:2", notebooks_for="users") as info:
        owner = rest(info)
        mine = {USER: owner.create_user("ann").token}
        mine[VIEWER] = owner.make_token("look", user="ann", role="viewer").secret
        others = {role: owner.create_user(f"a-{role.label}", role.label).token for role in Role}
        expired = owner.make_token("short", user="ann", days=1e-6 / DAY_S).secret
        limited = {scope: owner.make_token(f"only-{scope}", scopes=[scope]).secret for scope in TokenScope}
        found = Cast(info, mine, others, limited, [None, "wrong", expired])
        yield found
        owner.close()


def ask(cast: Cast, token: str | None, method: str, path: str, body: object) -> httpx.Response:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    with httpx.Client(base_url=cast.info.url, headers=headers, trust_env=False, timeout=30) as web:
        return web.request(method, path, json=body)


def test_every_request_has_a_row(cast: Cast) -> None:
    with http(cast.info) as web:
        paths = web.get("/openapi.json").json()["paths"]
    served = {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}
    rows = {row.replace("{notebook}", "{job}") for row in REQUESTS}
    assert served == rows - {"GET /openapi.json"}, "write a row for each new request"
    assert set(SCOPES) == rows - {"GET /v1/alive", "GET /v1/login"} | {SESSION_SOCKET}


@pytest.mark.parametrize("row", REQUESTS)
def test_each_role_and_scope_gets_what_its_row_says(cast: Cast, row: str) -> None:
    method, path = row.split(" ")
    needs = REQUESTS[row]
    with ExitStack() as stack:
        concerned = "{" in path or "checkpoints" in path
        objects = stack.enter_context(cast.objects()) if concerned else {}
        check_row(cast, method, path, needs, objects)


def check_row(cast: Cast, method: str, path: str, needs: Needs, objects: dict[str, str]) -> None:
    if "{notebook}" in path:
        new = NewNotebook(ONE_CELL, "wait", objects["session"], after=("data:never",))
        objects["notebook"] = rest(cast.info, cast.mine[USER]).submit_notebook(new)[0].job
    for name in ("digest", "account", "device", "name", "owner"):
        objects.setdefault(name, "none")
    if "/tokens/" not in path:
        objects["name"] = "none"
    body: object = {"job": objects["job"], "name": "half"} if "checkpoints" in path else None
    denied: list[tuple[str | None, int]] = []
    allowed: list[tuple[str | None, str]] = []
    if needs.own is NO_ROLE:
        allowed += [(token, "no token") for token in cast.strangers]
    else:
        denied += [(token, 401) for token in cast.strangers]
    for whose, tokens, needed in (("own", cast.mine, needs.own), ("other's", cast.others, needs.others)):
        for role, token in tokens.items():
            if needed is not NO_ROLE and role < needed:
                denied.append((token, 403))
            else:
                allowed.append((token, f"{whose}, {role.label}"))
    place = path.format(**objects)
    for scope, token in cast.limited.items():
        if needs.scopes and scope not in needs.scopes.split():
            denied.append((token, 403))
        elif needs.others is not NO_ROLE:
            allowed.append((token, f"an admin's, for {scope}"))
    for token, status in denied:
        assert ask(cast, token, method, place, body).status_code == status
    if path == "/v1/shutdown":
        return  # an admin may; other tests do
    for token, asking in allowed:
        assert ask(cast, token, method, place, body).status_code not in (401, 403), asking


def test_every_message_has_a_row() -> None:
    assert {kind.__name__ for kind in get_args(messages.ToPool)} == set(MESSAGES)


def test_a_websocket_needs_the_role_user_and_the_scope_cells(cast: Cast) -> None:
    refused = {**dict.fromkeys(cast.strangers, 401), cast.others[VIEWER]: 403, cast.mine[VIEWER]: 403}
    refused |= {token: 403 for scope, token in cast.limited.items() if scope is not TokenScope.CELLS}
    for token, status in refused.items():
        with pytest.raises(InvalidStatus) as caught:
            Wire(cast.info, token or "no token")
        assert caught.value.response.status_code == status
    for role in (USER, OPERATOR, ADMIN):
        with Client(cast.info, cast.others[role]) as client:
            assert client.welcome.user == f"a-{role.label}"
    with Client(cast.info, cast.limited[TokenScope.CELLS]) as client:
        assert client.run(act("")).outcome == "done"


@pytest.mark.parametrize("role", [USER, OPERATOR, ADMIN])
def test_no_role_reaches_the_session_of_another_user_by_websocket(cast: Cast, role: Role) -> None:
    with cast.objects() as objects:
        job = objects["job"]
        with Client(cast.info, cast.others[role]) as client:
            client.send(messages.CancelJob(job))
            client.send(messages.FinishJob(job, "cancelled", ""))
            client.send(messages.ReleaseValues([1]))
            assert client.run(act(""), job=job).outcome == "failed"
            client.send(messages.CloseSession())
        with Wire(cast.info, cast.others[role]) as wire:
            answer = wire.hello(session=objects["session"])
            assert isinstance(answer, messages.RequestRefused)
            assert "belongs to another user" in answer.message
        assert rest(cast.info).job(job).state == "RUNNING"
        assert objects["session"] in [one.session for one in rest(cast.info).sessions()]
