"""The pool's REST API, synchronously: for the command line, the magics and the dashboard.

Requests and answers are the structs of :mod:`djinn_lab.protocol.rest`.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

import httpx
import msgspec

from djinn_lab.client.addresses import leader_url
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

if TYPE_CHECKING:  # each method imports its own: a command starts without the queue's modules
    from djinn_lab.jobs.decision import CalendarReservation, QueuePolicy
    from djinn_lab.jobs.fairness import AccountView, Limits
    from djinn_lab.protocol.messages import PhaseAnswered
    from djinn_lab.protocol.rest.announcements import Announced, Published
    from djinn_lab.protocol.rest.jobs import JobDetail, JobUsage, JobView
    from djinn_lab.protocol.rest.notebooks import NewNotebook, NotebookView
    from djinn_lab.protocol.rest.queue import QueueView, WhatIfAnswer, WhyAnswer
    from djinn_lab.protocol.rest.sessions import MemoryView, SessionView
    from djinn_lab.protocol.rest.status import JournalLine, PoolStatus
    from djinn_lab.protocol.rest.users import UserToken, UserView
    from djinn_lab.scheduler import ExecutionSchedule
    from djinn_lab.srg.graph import SRG

POOL_VARIABLE = "DJINN_POOL"
TOKEN_VARIABLE = "DJINN_TOKEN"
CONNECT_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 60.0
USAGE_PAGE = 2000
START_ADVICE = "Start one with: djinn-lab pool start"
OTHER_VERSION_ADVICE = "Install the same version of djinn-lab here and on the pool."

Json = dict[str, Any]
"""A document whose format is defined elsewhere."""
Answer = TypeVar("Answer")


class PoolClient:
    """One pool, as one user. Safe for several threads.

    Every call raises PoolNotFound when nothing listens there, PoolLost when the connection breaks,
    AuthenticationError on a refused token, Refused when the role or the pool forbids it, and PoolError
    with the pool's own words otherwise, or for an answer that is not understood.
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
            return cls(leader_url(url), token)
        info = read_runtime()
        if info is None:
            raise PoolNotFound("No pool is running on this machine.", START_ADVICE)
        client = cls(info.url, token or info.token)
        client._follows_runtime = True
        return client

    def status(self) -> PoolStatus:
        """Read devices, load and versions."""
        from djinn_lab.protocol.rest.status import PoolStatus

        return self._read(PoolStatus, "/v1/status")

    def sessions(self) -> list[SessionView]:
        """List all sessions."""
        from djinn_lab.protocol.rest.sessions import SessionView

        return self._read(list[SessionView], "/v1/sessions")

    def memory(self) -> MemoryView:
        """Read where the state of all sessions is, and what session memory did lately."""
        from djinn_lab.protocol.rest.sessions import MemoryView

        return self._read(MemoryView, "/v1/memory")

    def signal_phase(self, session: str, phase: str, expected_s: float | None = None) -> PhaseAnswered:
        """Signal as :meth:`djinn_lab.client.session.Session.signal_phase`, from any thread or process."""
        from djinn_lab.protocol.messages import PhaseAnswered, SignalPhase

        path = f"/v1/sessions/{_part(session)}/phase"
        return self._send_body(PhaseAnswered, "POST", path, SignalPhase(phase, expected_s))

    def close_session(self, session: str) -> None:
        """Free everything that a session holds."""
        self._request("DELETE", f"/v1/sessions/{_part(session)}")

    def jobs(self, state: str | None = None, user: str | None = None, limit: int = 100) -> list[JobView]:
        """List jobs, newest first."""
        from djinn_lab.protocol.rest.jobs import JobView

        return self._read(list[JobView], "/v1/jobs", {"state": state, "user": user, "limit": limit})

    def job(self, job: str) -> JobDetail:
        """Read a job with its events, and its code for its owner. ``job``: the id, or its unique
        beginning."""
        from djinn_lab.protocol.rest.jobs import JobDetail

        return self._read(JobDetail, f"/v1/jobs/{_part(job)}")

    def cancel(self, job: str) -> JobView | NotebookView:
        """Ask to stop a job, or a batch notebook. Raises CancelFailed when it is over already."""
        from djinn_lab.protocol.rest.jobs import JobView

        if job.startswith(ID_PREFIX):
            return self.cancel_notebook(job)
        return self._cancel(JobView, f"/v1/jobs/{_part(job)}/cancel")

    def cancel_notebook(self, job: str) -> NotebookView:
        """Ask to stop a batch notebook. Raises CancelFailed when it is over already."""
        from djinn_lab.protocol.rest.notebooks import NotebookView

        return self._cancel(NotebookView, f"/v1/notebooks/{_part(job)}/cancel")

    def _cancel(self, kind: type[Answer], path: str) -> Answer:
        response = self._send("POST", path)
        if response.status_code == 409:
            raise CancelFailed(_detail(response))
        return self._decoded(response, kind)

    def program(self, job: str, segment: int | None = None) -> Program:
        """Read the program of a segment (default: the largest)."""
        content = self._request("GET", f"/v1/jobs/{_part(job)}/program", {"segment": segment}).content
        return decode_program(content)

    def graph(self, job: str, segment: int | None = None) -> SRG:
        """Read the graph of a segment (default: the largest)."""
        from djinn_lab.srg.export import from_json

        document = self._read(Json, f"/v1/jobs/{_part(job)}/graph", {"segment": segment})
        try:
            return from_json(document)
        except (msgspec.ValidationError, ValueError) as error:
            raise PoolError(f"The pool's answer is not understood: {error}", OTHER_VERSION_ADVICE) from None

    def schedule(self, job: str, segment: int | None = None) -> ExecutionSchedule:
        """Read the schedule of a segment (default: the largest), with measured times where it ran."""
        from djinn_lab.scheduler import ExecutionSchedule

        return self._read(ExecutionSchedule, f"/v1/jobs/{_part(job)}/schedule", {"segment": segment})

    def events(self, after: int | None = None, limit: int = 200) -> list[JournalLine]:
        """Read the journal after line ``after``, or its end; oldest first."""
        from djinn_lab.protocol.rest.status import JournalLine

        return self._read(list[JournalLine], "/v1/events", {"after": after, "limit": limit})

    def queue(self) -> QueueView:
        """Read which jobs wait and why, which run, and what every account used."""
        from djinn_lab.protocol.rest.queue import QueueView

        return self._read(QueueView, "/v1/queue")

    def usage(self, since: float = 0.0, limit: int = 10_000) -> list[JobUsage]:
        """Read what the newest jobs that ended used, oldest first. ``since``: submitted after, seconds since
        the epoch. Asked for page by page, so that the pool does other things in between."""
        from djinn_lab.protocol.rest.jobs import JobUsage

        found: list[JobUsage] = []
        while len(found) < limit:
            count = min(USAGE_PAGE, limit - len(found))
            before = found[0].job if found else None
            query = {"since": since, "limit": count, "before": before}
            page = self._read(list[JobUsage], "/v1/usage", query)
            found = page + found
            if len(page) < count:
                break
        return found

    def why(self, job: str) -> WhyAnswer:
        """Explain where a job, or a batch notebook, is."""
        from djinn_lab.protocol.rest.queue import WhyAnswer

        if job.startswith(ID_PREFIX):
            found = self.notebook(job)
            return WhyAnswer(found.job, found.state, found.reason)
        return self._read(WhyAnswer, f"/v1/jobs/{_part(job)}/why")

    def what_if(
        self,
        job: str,
        *,
        priority: str | None = None,
        members: int | None = None,
        deadline_s: float | None = None,
        anywhere: bool | None = None,
    ) -> WhatIfAnswer:
        """Say when a waiting job would start with these changes."""
        from djinn_lab.protocol.rest.queue import WhatIfAnswer

        changes = {
            "priority": priority,
            "members": members,
            "deadline_s": deadline_s,
            "anywhere": anywhere,
        }
        return self._read(WhatIfAnswer, f"/v1/jobs/{_part(job)}/what-if", changes)

    def submit_notebook(self, new: NewNotebook) -> tuple[NotebookView, bool]:
        """Submit a batch notebook. Returns it, and whether it is new: a submission whose key was accepted
        before is that one."""
        from djinn_lab.protocol.rest.notebooks import NotebookView

        response = self._send("POST", "/v1/notebooks", body=new)
        return self._decoded(response, NotebookView), response.status_code == 201

    def notebooks(
        self, state: str | None = None, user: str | None = None, limit: int = 100
    ) -> list[NotebookView]:
        """List batch notebooks, newest first."""
        from djinn_lab.protocol.rest.notebooks import NotebookView

        return self._read(list[NotebookView], "/v1/notebooks", {"state": state, "user": user, "limit": limit})

    def notebook(self, job: str) -> NotebookView:
        """Read a batch notebook. ``job``: the id, or its unique beginning."""
        from djinn_lab.protocol.rest.notebooks import NotebookView

        return self._read(NotebookView, f"/v1/notebooks/{_part(job)}")

    def notebook_result(self, job: str) -> bytes:
        """Fetch the executed notebook's file, as far as it is."""
        return self._request("GET", f"/v1/notebooks/{_part(job)}/result").content

    def announce_checkpoint(self, name: str, job: str | None = None) -> Announced:
        """Announce a checkpoint of a cell's job, or of the batch notebook whose token this is."""
        from djinn_lab.protocol.rest.announcements import Announced, Announcement

        return self._send_body(Announced, "POST", "/v1/checkpoints", Announcement(name, job))

    def publish(self, name: str, job: str | None = None) -> Published:
        """Publish data of this name, for jobs of this user and of the project. ``job``: the cell that
        publishes it."""
        from djinn_lab.protocol.rest.announcements import Announcement, Published

        return self._send_body(Published, "POST", "/v1/data", Announcement(name, job))

    def published(self) -> list[Published]:
        """List what was published for jobs of this user, newest first."""
        from djinn_lab.protocol.rest.announcements import Published

        return self._read(list[Published], "/v1/data")

    def forget_data(self, name: str) -> None:
        """Withdraw published data: jobs that depend on it wait again until it is published."""
        self._request("DELETE", "/v1/data/" + "/".join(map(_part, name.split("/"))))

    def preempt(self, job: str) -> None:
        """Preempt a running job: it resumes behind all that wait now."""
        self._request("POST", f"/v1/jobs/{_part(job)}/preempt")

    def set_targets(
        self,
        account: str,
        *,
        weight: float | None = None,
        limits: Limits | None = None,
        min_runtime_s: float | None = None,
    ) -> AccountView:
        """Set the weight, all limits, or the minimum run time of an account; what is left out stays."""
        from djinn_lab.jobs.fairness import AccountView
        from djinn_lab.protocol.rest.queue import AccountTargets

        targets = AccountTargets(weight, limits, min_runtime_s)
        path = "/v1/accounts/" + "/".join(map(_part, account.split("/")))
        return self._send_body(AccountView, "PUT", path, targets)

    def cordon(self, device: str, drain: bool = False) -> None:
        """Start nothing new on a device. ``drain``: preempt what runs there, too."""
        from djinn_lab.protocol.rest.queue import DeviceCordon

        self._check(self._send("POST", f"/v1/devices/{_part(device)}/cordon", body=DeviceCordon(drain)))

    def uncordon(self, device: str) -> None:
        """Start jobs on a device again."""
        self._request("POST", f"/v1/devices/{_part(device)}/uncordon")

    def describe_device(
        self,
        device: str,
        labels: Sequence[str] = (),
        taints: Sequence[str] = (),
        price: float = 0.0,
        watts: float | None = None,
    ) -> None:
        """Replace a device's description: ``key=value`` labels, taints, the price of an hour, the watts that
        it draws when busy (None: unknown)."""
        from djinn_lab.protocol.rest.queue import DeviceDescription

        try:
            described = DeviceDescription(tuple(labels), tuple(taints), price, watts)
        except ValueError as error:
            raise OptionError(str(error)) from None
        self._check(self._send("PUT", f"/v1/devices/{_part(device)}/description", body=described))

    def reserve(
        self,
        name: str,
        devices: Sequence[str],
        accounts: Sequence[str],
        ends_at: float,
        begins_at: float | None = None,
    ) -> None:
        """Reserve devices for accounts, from now on if ``begins_at`` is None; seconds since the epoch."""
        from djinn_lab.protocol.rest.queue import NewReservation

        wanted = NewReservation(tuple(devices), ends_at, tuple(accounts), begins_at)
        self._check(self._send("PUT", f"/v1/reservations/{_part(name)}", body=wanted))

    def reservations(self) -> list[CalendarReservation]:
        """List reservations: which devices, for which accounts, when."""
        from djinn_lab.jobs.decision import CalendarReservation

        return self._read(list[CalendarReservation], "/v1/reservations")

    def end_reservation(self, name: str) -> None:
        """End a reservation before its time."""
        self._request("DELETE", f"/v1/reservations/{_part(name)}")

    def set_policy(self, policy: str | QueuePolicy) -> None:
        """Decide by another policy from now on: one that the pool knows by name, or any."""
        from djinn_lab.protocol.rest.queue import PolicyChoice

        self._check(self._send("PUT", "/v1/queue/policy", body=PolicyChoice(policy)))

    def users(self) -> list[UserView]:
        """List all users."""
        from djinn_lab.protocol.rest.users import UserView

        return self._read(list[UserView], "/v1/users")

    def create_user(self, name: str, role: str = "user", account: str | None = None) -> UserToken:
        """Add a user. Returns the token, which is shown this once. ``account``: above the user's own."""
        from djinn_lab.protocol.rest.users import NewUser, UserToken

        return self._send_body(UserToken, "POST", "/v1/users", NewUser(name, role, account))

    def delete_user(self, name: str) -> None:
        """Remove a user and close the user's sessions."""
        self._request("DELETE", f"/v1/users/{_part(name)}")

    def shutdown(self) -> None:
        """Stop the pool."""
        self._request("POST", "/v1/shutdown")

    def close(self) -> None:
        self._finalizer()

    def _read(self, kind: type[Answer], path: str, query: Mapping[str, Any] | None = None) -> Answer:
        return self._decoded(self._send("GET", path, query), kind)

    def _send_body(self, kind: type[Answer], method: str, path: str, body: msgspec.Struct) -> Answer:
        return self._decoded(self._send(method, path, body=body), kind)

    def _decoded(self, response: httpx.Response, kind: type[Answer]) -> Answer:
        """Decode the answer of a request that succeeded."""
        self._check(response)
        try:
            return msgspec.json.decode(response.content, type=kind)
        except msgspec.DecodeError as error:
            raise PoolError(f"The pool's answer is not understood: {error}", OTHER_VERSION_ADVICE) from None

    def _request(self, method: str, path: str, query: Mapping[str, Any] | None = None) -> httpx.Response:
        response = self._send(method, path, query)
        self._check(response)
        return response

    def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any] | None = None,
        body: msgspec.Struct | None = None,
    ) -> httpx.Response:
        given = {name: value for name, value in (query or {}).items() if value is not None}
        content = None if body is None else msgspec.json.encode(body)
        headers = None if body is None else {"Content-Type": "application/json"}
        try:
            return self._http.request(method, path, params=given, content=content, headers=headers)
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
        """Return whether this user's pool runs at another address by now. If so, use that address from here
        on."""
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
