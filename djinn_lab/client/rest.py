"""The pool's REST API, synchronously: for the command line, the magics and the dashboard."""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import httpx

from djinn_lab.client.addresses import leading
from djinn_lab.errors import (
    AuthenticationError,
    CancelFailed,
    OptionError,
    PoolError,
    PoolLost,
    PoolNotFound,
    Refused,
)
from djinn_lab.protocol.notebooks import ID_PREFIX
from djinn_lab.protocol.runtime_file import read_runtime
from djinn_lab.srg.program import Program, decode_program

POOL_VARIABLE = "DJINN_POOL"
TOKEN_VARIABLE = "DJINN_TOKEN"
CONNECT_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 60.0
USAGE_PAGE = 2000
START_ADVICE = "Start one with: djinn-lab pool start"

Json = dict[str, Any]


class PoolClient:
    """One pool, as one user. Safe for several threads.

    Every call raises PoolNotFound when nothing listens there, PoolLost when the connection breaks,
    AuthenticationError on a refused token, Refused when the role or the pool forbids it, and PoolError
    with the pool's own words otherwise.
    """

    def __init__(self, url: str, token: str) -> None:
        self._follows_runtime = False
        self._http = httpx.Client(
            timeout=httpx.Timeout(READ_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
            trust_env=False,
        )
        self._use(url, token)
        self._finalizer = weakref.finalize(self, self._http.close)

    @classmethod
    def find(cls) -> PoolClient:
        """The pool of ``DJINN_POOL`` and ``DJINN_TOKEN``, else this user's running one, and later the one
        that takes its place. Raises PoolNotFound."""
        url, token = os.environ.get(POOL_VARIABLE), os.environ.get(TOKEN_VARIABLE)
        if url:
            if not token:
                raise AuthenticationError(
                    f"{POOL_VARIABLE} is set and {TOKEN_VARIABLE} is not.",
                    f"Set {TOKEN_VARIABLE} to your token for {url}.",
                )
            return cls(leading(url), token)
        info = read_runtime()
        if info is None:
            raise PoolNotFound("No pool is running on this machine.", START_ADVICE)
        client = cls(info.url, token or info.token)
        client._follows_runtime = True
        return client

    def status(self) -> Json:
        """Devices, load and versions."""
        return self._dict("GET", "/v1/status")

    def sessions(self) -> list[Json]:
        return self._list("/v1/sessions")

    def memory(self) -> Json:
        """Devices, sessions, cells that wait for memory, wake-ups, counters and what happened lately."""
        return self._dict("GET", "/v1/memory")

    def signal_phase(self, session: str, phase: str, expected_s: float | None = None) -> Json:
        """As :meth:`djinn_lab.client.session.Session.signal_phase`, from any thread or process: the answer's
        ``answer`` and ``message``."""
        response = self._send(
            "POST", f"/v1/sessions/{_part(session)}/phase", body={"phase": phase, "expected_s": expected_s}
        )
        self._check(response)
        answer: Json = response.json()
        return answer

    def close_session(self, session: str) -> None:
        """Free everything that a session holds."""
        self._request("DELETE", f"/v1/sessions/{_part(session)}")

    def jobs(self, state: str | None = None, user: str | None = None, limit: int = 100) -> list[Json]:
        """Newest first."""
        return self._list("/v1/jobs", {"state": state, "user": user, "limit": limit})

    def job(self, job: str) -> Json:
        """With its events, and its code where one may see it. ``job``: the id, or a unique start of it."""
        return self._dict("GET", f"/v1/jobs/{_part(job)}")

    def cancel(self, job: str) -> Json:
        """Ask to stop a job, or a batch notebook. Raises CancelFailed when it is over already."""
        kind = "notebooks" if job.startswith(ID_PREFIX) else "jobs"
        response = self._send("POST", f"/v1/{kind}/{_part(job)}/cancel")
        if response.status_code == 409:
            raise CancelFailed(_detail(response))
        self._check(response)
        answer: Json = response.json()
        return answer

    def program(self, job: str, segment: int | None = None) -> Program:
        """What a segment (default: the largest) asked the worker to do."""
        content = self._request("GET", f"/v1/jobs/{_part(job)}/program", {"segment": segment}).content
        return decode_program(content)

    def graph(self, job: str, segment: int | None = None) -> Json:
        """The SRG, as :func:`djinn_lab.srg.export.from_json` reads it, with its ``segment``."""
        return self._dict("GET", f"/v1/jobs/{_part(job)}/graph", {"segment": segment})

    def schedule(self, job: str, segment: int | None = None) -> Json:
        """The execution schedule, with measured times where it ran, and its ``segment``."""
        return self._dict("GET", f"/v1/jobs/{_part(job)}/schedule", {"segment": segment})

    def events(self, after: int | None = None, limit: int = 200) -> list[Json]:
        """The journal after line ``after``, or its end; oldest first."""
        return self._list("/v1/events", {"after": after, "limit": limit})

    def queue(self) -> Json:
        """Who waits and why, who runs, what every account has had."""
        return self._dict("GET", "/v1/queue")

    def usage(self, since: float = 0.0, limit: int = 10_000) -> list[Json]:
        """What the newest jobs that ended used, oldest first. ``since``: submitted after, seconds since the
        epoch. Asked for page by page, so that the pool does other things in between."""
        found: list[Json] = []
        while len(found) < limit:
            count = min(USAGE_PAGE, limit - len(found))
            before = found[0]["job"] if found else None
            page = self._list("/v1/usage", {"since": since, "limit": count, "before": before})
            found = page + found
            if len(page) < count:
                break
        return found

    def why(self, job: str) -> Json:
        """Why a job is where it is: ``sentence``, and for one that waits for a device its ``explanation``. Of
        a batch notebook, the notebook with its ``sentence``."""
        if job.startswith(ID_PREFIX):
            found = self.notebook(job)
            return {**found, "sentence": found["reason"]}
        return self._dict("GET", f"/v1/jobs/{_part(job)}/why")

    def what_if(self, job: str, **changes: Any) -> Json:
        """When a waiting job would start with another ``priority``, ``members`` or ``deadline_s``, or
        ``anywhere``."""
        return self._dict("GET", f"/v1/jobs/{_part(job)}/what-if", changes)

    def submit_notebook(self, submission: Json) -> tuple[Json, bool]:
        """The batch notebook, and whether it is new: a submission whose key was accepted before is that one.
        ``submission``: as :class:`djinn_lab.pool.notebooks.views.NewNotebook`."""
        response = self._send("POST", "/v1/notebooks", body=submission)
        self._check(response)
        answer: Json = response.json()
        return answer, response.status_code == 201

    def notebooks(self, state: str | None = None, user: str | None = None, limit: int = 100) -> list[Json]:
        """Batch notebooks, newest first."""
        return self._list("/v1/notebooks", {"state": state, "user": user, "limit": limit})

    def notebook(self, job: str) -> Json:
        """``job``: the id, or a unique start of it."""
        return self._dict("GET", f"/v1/notebooks/{_part(job)}")

    def notebook_result(self, job: str) -> bytes:
        """The executed notebook's file, as far as it is."""
        return self._request("GET", f"/v1/notebooks/{_part(job)}/result").content

    def announce_checkpoint(self, name: str, job: str | None = None) -> Json:
        """A cell's job, or the batch notebook whose token this is, has come to a checkpoint."""
        return self._say("/v1/checkpoints", name, job)

    def publish(self, name: str, job: str | None = None) -> Json:
        """Data of this name is there, for jobs of this user and of the project. ``job``: the cell that says
        so."""
        return self._say("/v1/data", name, job)

    def published(self) -> list[Json]:
        """What was published for jobs of this user, newest first."""
        return self._list("/v1/data")

    def forget_data(self, name: str) -> None:
        """Who comes after it waits again for it to be published."""
        self._request("DELETE", "/v1/data/" + "/".join(map(_part, name.split("/"))))

    def _say(self, path: str, name: str, job: str | None) -> Json:
        response = self._send("POST", path, body={"name": name, "job": job})
        self._check(response)
        answer: Json = response.json()
        return answer

    def preempt(self, job: str) -> None:
        """Ask a running job to move aside, behind all that wait."""
        self._request("POST", f"/v1/jobs/{_part(job)}/preempt")

    def set_targets(self, account: str, **targets: Any) -> Json:
        """``weight``, ``limits`` and ``min_runtime_s`` of an account; what is left out stays."""
        path = "/v1/accounts/" + "/".join(map(_part, account.split("/")))
        response = self._send("PUT", path, body=targets)
        self._check(response)
        answer: Json = response.json()
        return answer

    def cordon(self, device: str, drain: bool = False) -> None:
        """Start nothing new on a device; ``drain``: what runs there moves aside."""
        self._check(self._send("POST", f"/v1/devices/{_part(device)}/cordon", body={"drain": drain}))

    def uncordon(self, device: str) -> None:
        self._request("POST", f"/v1/devices/{_part(device)}/uncordon")

    def describe_device(
        self,
        device: str,
        labels: Sequence[str] = (),
        taints: Sequence[str] = (),
        price: float = 0.0,
        watts: float | None = None,
    ) -> None:
        """In place of what was said about it before: ``key=value`` labels, taints, the price of an hour, the
        watts that it draws when busy (None: unknown)."""
        if not math.isfinite(price) or not math.isfinite(watts or 0.0):
            what = f"a price of {price} and a draw of {watts} watts"
            raise OptionError(f"Device {device} would have {what}.", "Give finite numbers.")
        body = {"labels": list(labels), "taints": list(taints), "price": price, "watts": watts}
        self._check(self._send("PUT", f"/v1/devices/{_part(device)}/description", body=body))

    def reserve(
        self,
        name: str,
        devices: Sequence[str],
        accounts: Sequence[str],
        ends_at: float,
        begins_at: float | None = None,
    ) -> None:
        """Keep devices for accounts, from now on if ``begins_at`` is None; seconds since the epoch."""
        body = {
            "devices": list(devices),
            "accounts": list(accounts),
            "ends_at": ends_at,
            "begins_at": begins_at,
        }
        self._check(self._send("PUT", f"/v1/reservations/{_part(name)}", body=body))

    def reservations(self) -> list[Json]:
        """Devices that are kept for accounts, and when."""
        return self._list("/v1/reservations")

    def end_reservation(self, name: str) -> None:
        self._request("DELETE", f"/v1/reservations/{_part(name)}")

    def set_policy(self, policy: str | Mapping[str, Any]) -> None:
        """Decide by another policy from now on: one that the pool knows by name, or all its fields."""
        self._check(self._send("PUT", "/v1/queue/policy", body={"policy": policy}))

    def users(self) -> list[Json]:
        return self._list("/v1/users")

    def create_user(self, name: str, role: str = "user", account: str | None = None) -> Json:
        """The answer holds the new user's token, which is shown this once. ``account``: above the user's
        own."""
        response = self._send("POST", "/v1/users", body={"name": name, "role": role, "account": account})
        self._check(response)
        answer: Json = response.json()
        return answer

    def delete_user(self, name: str) -> None:
        """Their sessions are closed."""
        self._request("DELETE", f"/v1/users/{_part(name)}")

    def shutdown(self) -> None:
        """Stop the pool."""
        self._request("POST", "/v1/shutdown")

    def close(self) -> None:
        self._finalizer()

    def _dict(self, method: str, path: str, query: Mapping[str, Any] | None = None) -> Json:
        answer: Json = self._request(method, path, query).json()
        return answer

    def _list(self, path: str, query: Mapping[str, Any] | None = None) -> list[Json]:
        answer: list[Json] = self._request("GET", path, query).json()
        return answer

    def _request(self, method: str, path: str, query: Mapping[str, Any] | None = None) -> httpx.Response:
        response = self._send(method, path, query)
        self._check(response)
        return response

    def _send(
        self, method: str, path: str, query: Mapping[str, Any] | None = None, body: Json | None = None
    ) -> httpx.Response:
        given = {name: value for name, value in (query or {}).items() if value is not None}
        try:
            return self._http.request(method, path, params=given, json=body)
        except httpx.ConnectError as error:
            if self._moved_on():
                return self._send(method, path, query, body)
            raise PoolNotFound(f"No pool answers at {self.url} ({error}).", START_ADVICE) from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise PoolLost(f"The connection to {self.url} broke ({error}).", "Try again.") from None

    def _use(self, url: str, token: str) -> None:
        self.url = url.rstrip("/")
        self._http.base_url = self.url
        self._http.headers["Authorization"] = f"Bearer {token}"

    def _moved_on(self) -> bool:
        """Whether this user's pool runs at another address by now; it is used from here on."""
        info = read_runtime() if self._follows_runtime else None
        if info is None or info.url == self.url:
            return False
        self._use(info.url, os.environ.get(TOKEN_VARIABLE) or info.token)
        return True

    def _check(self, response: httpx.Response) -> None:
        if response.is_success:
            return
        detail = _detail(response)
        match response.status_code:
            case 401:
                advice = f"Check {TOKEN_VARIABLE}, or ask the pool's administrator for a token."
                raise AuthenticationError(f"The pool at {self.url} refused the token.", advice)
            case 403 | 413:
                raise Refused(detail)
            case 400 | 422:
                raise OptionError(detail)
            case _:
                raise PoolError(detail)


def _part(text: str) -> str:
    """One segment of a path."""
    return quote(text, safe="") or "-"


def _detail(response: httpx.Response) -> str:
    """The pool's own words."""
    try:
        detail = response.json()["detail"]
    except (ValueError, KeyError, TypeError):
        return f"The pool answered with HTTP {response.status_code}."
    if isinstance(detail, list):
        return "; ".join(f"{'.'.join(map(str, one['loc'][1:]))}: {one['msg']}" for one in detail)
    return str(detail)
