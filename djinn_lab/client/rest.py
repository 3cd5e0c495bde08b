"""The pool's REST API, synchronously: for the command line, the magics and the dashboard.

Requests and answers are the structs of :mod:`djinn_lab.protocol.rest`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from djinn_lab.client.requests import PoolRequests, not_understood, path_part, path_parts
from djinn_lab.errors import OptionError, PoolError
from djinn_lab.protocol.notebooks import ID_PREFIX
from djinn_lab.srg.program import Program, decode_program, decode_programs

if TYPE_CHECKING:  # each method imports its own: a command starts without the queue's modules
    from djinn_lab.jobs.decision import CalendarReservation, QueuePolicy
    from djinn_lab.jobs.fairness import AccountView, Limits
    from djinn_lab.protocol.messages import PhaseAnswered
    from djinn_lab.protocol.rest.announcements import Announced, Published
    from djinn_lab.protocol.rest.audit import AuditRow, ChainHead
    from djinn_lab.protocol.rest.costs import CostView
    from djinn_lab.protocol.rest.history import PoolHistory
    from djinn_lab.protocol.rest.jobs import JobDetail, JobPage, JobUsage, JobView
    from djinn_lab.protocol.rest.notebooks import NewNotebook, NotebookView
    from djinn_lab.protocol.rest.queue import QueueView, WhatIfAnswer, WhyAnswer
    from djinn_lab.protocol.rest.sessions import MemoryView, SessionView
    from djinn_lab.protocol.rest.snapshot import PoolSnapshot
    from djinn_lab.protocol.rest.status import JournalLine, PoolStatus
    from djinn_lab.protocol.rest.users import TokenMade, TokenView, UserToken, UserView
    from djinn_lab.scheduler import ExecutionSchedule
    from djinn_lab.srg.graph import SRG

USAGE_PAGE = 2000


class PoolClient(PoolRequests):
    """One pool, as one user: a method for each request, by what it is about. They raise the errors of
    :class:`~djinn_lab.client.requests.PoolRequests`. Safe for several threads."""

    # -- the pool -------------------------------------------------------------------------------------------

    def check_writes(self) -> None:
        """Raises PoolError where the pool's database has no space: then most answers wait until it has."""
        if not self._read(dict[str, bool], "/v1/alive").get("writes", True):
            raise PoolError(
                f"The pool at {self.url} runs, but its database has no space, and cells and answers wait.",
                "Free some on the disk of the database; everything continues then.",
            )

    def status(self) -> PoolStatus:
        """Read devices, load and versions."""
        from djinn_lab.protocol.rest.status import PoolStatus

        return self._read(PoolStatus, "/v1/status")

    def snapshot(self, jobs: int = 100) -> PoolSnapshot:
        """Read status, sessions, session memory and the newest jobs of one moment."""
        from djinn_lab.protocol.rest.snapshot import PoolSnapshot

        return self._read(PoolSnapshot, "/v1/snapshot", {"jobs": jobs})

    def events(self, after: int | None = None, limit: int = 200) -> list[JournalLine]:
        """Read the journal after line ``after``, or its end; oldest first."""
        from djinn_lab.protocol.rest.status import JournalLine

        return self._read(list[JournalLine], "/v1/events", {"after": after, "limit": limit})

    def alive(self) -> None:
        """Make the shortest request there is: it takes one round trip."""
        self._request("GET", "/v1/alive")

    def send_bytes(self, data: bytes) -> None:
        """Send bytes that the pool counts and drops, 16 MiB at most: to measure the way there."""
        self._request("PUT", "/v1/link", body=data)

    def receive_bytes(self, nbytes: int) -> bytes:
        """Fetch random bytes, 16 MiB at most: to measure the way from the pool."""
        return self._request("GET", "/v1/link", {"nbytes": nbytes}).content

    def shutdown(self) -> None:
        """Stop the pool."""
        self._request("POST", "/v1/shutdown")

    def audit(
        self,
        limit: int = 200,
        *,
        after: int | None = None,
        user: str | None = None,
        action: str | None = None,
        refused: bool = False,
        since: float | None = None,
    ) -> list[AuditRow]:
        """Read the audit, newest first; or behind row ``after``, oldest first. ``action``: part of a name.
        ``refused``: refusals and faults only. ``since``: seconds since the epoch."""
        from djinn_lab.protocol.rest.audit import AuditRow

        query = {"limit": limit, "after": after, "user": user, "action": action, "since": since}
        return self._read(list[AuditRow], "/v1/audit", {**query, "refused": "true" if refused else None})

    def audit_head(self) -> ChainHead:
        """Read the last row's number and hash, and where the chain begins."""
        from djinn_lab.protocol.rest.audit import ChainHead

        return self._read(ChainHead, "/v1/audit/head")

    # -- sessions -------------------------------------------------------------------------------------------

    def sessions(self) -> list[SessionView]:
        """List all sessions."""
        from djinn_lab.protocol.rest.sessions import SessionView

        return self._read(list[SessionView], "/v1/sessions")

    def memory(self) -> MemoryView:
        """Read where the state of all sessions is, and what session memory did lately."""
        from djinn_lab.protocol.rest.sessions import MemoryView

        return self._read(MemoryView, "/v1/memory")

    def settled_memory(self, session: str) -> MemoryView:
        """Read it once what this session has released is counted, unless its device is too busy to say so
        within seconds."""
        from djinn_lab.protocol.rest.sessions import MemoryView

        return self._read(MemoryView, "/v1/memory", {"settled": session})

    def signal_phase(self, session: str, phase: str, expected_s: float | None = None) -> PhaseAnswered:
        """Signal as :meth:`djinn_lab.client.session.Session.signal_phase`, from any thread or process."""
        from djinn_lab.protocol.messages import PhaseAnswered, SignalPhase

        path = f"/v1/sessions/{path_part(session)}/phase"
        return self._send_body(PhaseAnswered, "POST", path, SignalPhase(phase, expected_s))

    def close_session(self, session: str) -> None:
        """Free everything that a session holds."""
        self._request("DELETE", f"/v1/sessions/{path_part(session)}")

    # -- cell jobs ------------------------------------------------------------------------------------------

    def jobs(
        self, state: str | None = None, user: str | None = None, limit: int = 100, fetches: bool = False
    ) -> list[JobView]:
        """List jobs, newest first. ``fetches``: also those that fetched values between cells, and are
        done."""
        from djinn_lab.protocol.rest.jobs import JobView

        return self._read(
            list[JobView],
            "/v1/jobs",
            {"state": state, "user": user, "limit": limit, "fetches": "true" if fetches else None},
        )

    def job_page(
        self,
        state: str | None = None,
        user: str | None = None,
        find: str = "",
        before: str | None = None,
        limit: int = 200,
        fetches: bool = False,
    ) -> JobPage:
        """Look through all jobs that the pool knows. ``state``: also ``UNFINISHED``. ``find``: a text in
        their user, cell, notebook or id. ``before``: list what is behind this job."""
        from djinn_lab.protocol.rest.jobs import JobPage

        query = {"state": state, "user": user, "find": find or None, "before": before, "limit": limit}
        return self._read(JobPage, "/v1/job-pages", {**query, "fetches": "true" if fetches else None})

    def job(self, job: str) -> JobDetail:
        """Read a job with its events, and its code for its owner. ``job``: the id, or its unique
        beginning."""
        from djinn_lab.protocol.rest.jobs import JobDetail

        return self._read(JobDetail, f"/v1/jobs/{path_part(job)}")

    def why(self, job: str) -> WhyAnswer:
        """Explain where a job, or a batch notebook, is."""
        from djinn_lab.protocol.rest.queue import WhyAnswer

        if job.startswith(ID_PREFIX):
            found = self.notebook(job)
            return WhyAnswer(found.job, found.state, found.reason)
        return self._read(WhyAnswer, f"/v1/jobs/{path_part(job)}/why")

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
        return self._read(WhatIfAnswer, f"/v1/jobs/{path_part(job)}/what-if", changes)

    def cancel(self, job: str) -> JobView | NotebookView:
        """Ask to stop a job, or a batch notebook. Raises CancelFailed when it is over already."""
        from djinn_lab.protocol.rest.jobs import JobView

        if job.startswith(ID_PREFIX):
            return self.cancel_notebook(job)
        return self._cancel(JobView, f"/v1/jobs/{path_part(job)}/cancel")

    def preempt(self, job: str) -> None:
        """Preempt a running job: it resumes behind all that wait now."""
        self._request("POST", f"/v1/jobs/{path_part(job)}/preempt")

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

    def history(
        self, since: float | None = None, until: float | None = None, bucket_s: float | None = None
    ) -> PoolHistory:
        """Read the use of devices and accounts, and the waits of cells, over time: by default of the last
        day, in quarters of an hour. Times in seconds since the epoch."""
        from djinn_lab.protocol.rest.history import PoolHistory

        query = {"since": since, "until": until, "bucket_s": bucket_s}
        return self._read(PoolHistory, "/v1/history", query)

    def program(self, job: str, segment: int | None = None) -> Program:
        """Read the program of a segment (default: the largest)."""
        content = self._request("GET", f"/v1/jobs/{path_part(job)}/program", {"segment": segment}).content
        return decode_program(content)

    def programs(self, job: str) -> list[Program]:
        """Read the programs of a cell, from each cut to the next, in order."""
        return decode_programs(self._request("GET", f"/v1/jobs/{path_part(job)}/programs").content)

    def graph(self, job: str, segment: int | None = None) -> SRG:
        """Read the graph of a segment (default: the largest)."""
        from djinn_lab.srg.export import from_json

        document = self._read(dict[str, object], f"/v1/jobs/{path_part(job)}/graph", {"segment": segment})
        try:
            return from_json(document)
        except (msgspec.ValidationError, ValueError) as error:
            raise not_understood(error) from None

    def schedule(self, job: str, segment: int | None = None, *, whole: bool = False) -> ExecutionSchedule:
        """Read the schedule of a segment (default: the largest), with measured times where it ran.
        ``whole``: of all parts of the cell as one."""
        from djinn_lab.scheduler import ExecutionSchedule

        query = {"segment": segment, "whole": "true" if whole else None}
        return self._read(ExecutionSchedule, f"/v1/jobs/{path_part(job)}/schedule", query)

    # -- batch notebooks ------------------------------------------------------------------------------------

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

        return self._read(NotebookView, f"/v1/notebooks/{path_part(job)}")

    def notebook_result(self, job: str) -> bytes:
        """Fetch the executed notebook's file, as far as it is."""
        return self._request("GET", f"/v1/notebooks/{path_part(job)}/result").content

    def cancel_notebook(self, job: str) -> NotebookView:
        """Ask to stop a batch notebook. Raises CancelFailed when it is over already."""
        from djinn_lab.protocol.rest.notebooks import NotebookView

        return self._cancel(NotebookView, f"/v1/notebooks/{path_part(job)}/cancel")

    # -- checkpoints and published data ---------------------------------------------------------------------

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
        self._request("DELETE", "/v1/data/" + path_parts(name))

    # -- the queue ------------------------------------------------------------------------------------------

    def queue(self) -> QueueView:
        """Read which jobs wait and why, which run, and what every account used."""
        from djinn_lab.protocol.rest.queue import QueueView

        return self._read(QueueView, "/v1/queue")

    def set_policy(self, policy: str | QueuePolicy) -> None:
        """Decide by another policy from now on: one that the pool knows by name, or any."""
        from djinn_lab.protocol.rest.queue import PolicyChoice

        self._check(self._send("PUT", "/v1/queue/policy", body=PolicyChoice(policy)))

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
        path = "/v1/accounts/" + path_parts(account)
        return self._send_body(AccountView, "PUT", path, targets)

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
        self._check(self._send("PUT", f"/v1/reservations/{path_part(name)}", body=wanted))

    def reservations(self) -> list[CalendarReservation]:
        """List reservations: which devices, for which accounts, when."""
        from djinn_lab.jobs.decision import CalendarReservation

        return self._read(list[CalendarReservation], "/v1/reservations")

    def end_reservation(self, name: str) -> None:
        """End a reservation before its time."""
        self._request("DELETE", f"/v1/reservations/{path_part(name)}")

    # -- devices --------------------------------------------------------------------------------------------

    def cordon(self, device: str, drain: bool = False) -> None:
        """Start nothing new on a device. ``drain``: preempt what runs there, too."""
        from djinn_lab.protocol.rest.queue import DeviceCordon

        self._check(self._send("POST", f"/v1/devices/{path_part(device)}/cordon", body=DeviceCordon(drain)))

    def uncordon(self, device: str) -> None:
        """Start jobs on a device again."""
        self._request("POST", f"/v1/devices/{path_part(device)}/uncordon")

    def calibrate(self, device: str) -> None:
        """Measure a device again as soon as it is idle."""
        self._request("POST", f"/v1/devices/{path_part(device)}/calibrate")

    def costs(self, details: bool = False) -> CostView:
        """Show what run times are predicted from, and how predictions fare. ``details``: also the measured
        curves, and the newest runs beside their predictions."""
        from djinn_lab.protocol.rest.costs import CostView

        return self._read(CostView, "/v1/costs", {"details": details or None})

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
        self._check(self._send("PUT", f"/v1/devices/{path_part(device)}/description", body=described))

    # -- users ----------------------------------------------------------------------------------------------

    def users(self) -> list[UserView]:
        """List all users."""
        from djinn_lab.protocol.rest.users import UserView

        return self._read(list[UserView], "/v1/users")

    def create_user(
        self, name: str, role: str = "user", account: str | None = None, days: float | None = None
    ) -> UserToken:
        """Add a user. Returns the token, which is shown this once. ``account``: above the user's own."""
        from djinn_lab.protocol.rest.users import NewUser, UserToken

        return self._send_body(UserToken, "POST", "/v1/users", NewUser(name, role, account, days))

    def set_role(self, name: str, role: str) -> UserView:
        """Give a user another role, which holds for the user's tokens and sessions at once."""
        from djinn_lab.protocol.rest.users import RoleChoice, UserView

        return self._send_body(UserView, "PATCH", f"/v1/users/{path_part(name)}", RoleChoice(role))

    def tokens(self) -> list[TokenView]:
        """List the tokens of this user; as an admin, of all."""
        from djinn_lab.protocol.rest.users import TokenView

        return self._read(list[TokenView], "/v1/tokens")

    def make_token(
        self,
        name: str,
        *,
        user: str = "",
        role: str = "",
        days: float | None = None,
        scopes: Sequence[str] = (),
    ) -> TokenMade:
        """Make a token: for this user, or as an admin for another one. ``role``: at most the user's.
        ``days``: None for the default, 0 for ever. ``scopes``: what it is limited to."""
        from djinn_lab.protocol.rest.users import NewToken, TokenMade

        return self._send_body(
            TokenMade, "POST", "/v1/tokens", NewToken(name, user, role, days, tuple(scopes))
        )

    def rotate_token(
        self, user: str, name: str, *, overlap_s: float = 86_400.0, days: float | None = None
    ) -> TokenMade:
        """Make a new secret for a token. The old one ends after ``overlap_s``."""
        from djinn_lab.protocol.rest.users import TokenMade, TokenRotation

        path = f"/v1/tokens/{path_part(user)}/{path_part(name)}/rotate"
        return self._send_body(TokenMade, "POST", path, TokenRotation(overlap_s, days))

    def revoke_token(self, user: str, name: str) -> None:
        """End a token at once, with the connections that it opened."""
        self._request("DELETE", f"/v1/tokens/{path_part(user)}/{path_part(name)}")

    def delete_user(self, name: str) -> None:
        """Remove a user and close the user's sessions."""
        self._request("DELETE", f"/v1/users/{path_part(name)}")
