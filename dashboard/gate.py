"""Decide which visitors may see the dashboard, and as which user of the pool.

No login is needed where only one person can be there: the dashboard listens on loopback, and the pool has
one user. Otherwise the user who runs the dashboard comes in by a code of
:mod:`djinn_lab.protocol.dashboard_login`, and others by a token of theirs; they see what that token may see.
A code in the address is exchanged for a cookie.
"""

from __future__ import annotations

import ipaddress
import os
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import psutil

from djinn_lab.client.rest import PoolClient
from djinn_lab.dashboard.hub import Hub, Snapshot
from djinn_lab.protocol.dashboard_login import GOOD_FOR_S, is_good

COOKIE = "djinn_dashboard"
LOGIN_S = 12 * 3600.0
LOGINS_MAX = 1000


@dataclass(slots=True, eq=False)
class Login:
    """``hub``: asks the pool as this user. ``own``: the user who runs the dashboard. ``cookie``: its secret,
    empty where no login is needed."""

    hub: Hub
    own: bool
    until_s: float
    cookie: str = ""


class Gate:
    """Admit browsers. ``own``: the hub of the user who runs this process. ``always_closed``: a login is
    needed in any case."""

    def __init__(
        self,
        own: Hub,
        make_hub: Callable[[Callable[[], PoolClient]], Hub] = Hub,
        always_closed: bool = False,
    ) -> None:
        self._own = own
        self._always_closed = always_closed
        self._make_hub = make_hub
        self._logins: dict[str, Login] = {}
        self._codes: dict[str, Login] = {}
        self._taken: dict[str, float] = {}
        self._hubs: dict[str, Hub] = {}
        self._lock = threading.Lock()

    @property
    def closed(self) -> bool:
        """Return whether a login is needed."""
        status = self._own.snapshot().status
        several = status is not None and (status.users > 1 or status.role != "admin")
        return self._always_closed or several or self._reached_from_elsewhere

    def keeper(self) -> Snapshot:
        """Return what the user who runs this process knows of the pool."""
        return self._own.snapshot()

    def enter(self, cookies: Mapping[str, str], code: str) -> Login | None:
        """Find the login of a browser, None when it has to log in. One that comes by a code has a ``cookie``
        that is not in ``cookies``."""
        with self._lock:
            self._sweep()
            for value in cookies.values():
                if value in self._logins:
                    return self._logins[value]
            if code and (found := self._take(code)) is not None:
                return found
        return None if self.closed else Login(self._own, True, time.monotonic() + LOGIN_S)

    def holds(self, login: Login) -> bool:
        """Return whether a login still counts: its time is not over, and the pool takes its token."""
        if not login.cookie:
            return not self.closed
        refused = not login.own and login.hub.snapshot().connection == "refused"
        if refused or time.monotonic() > login.until_s:
            with self._lock:
                self._logins.pop(login.cookie, None)
        return login.cookie in self._logins

    def log_in(self, token: str) -> str:
        """Return a code for the user of a token. Blocks; raises DjinnError when the pool refuses it."""
        client = self._client(token)
        client.status()
        with self._lock:
            hub = self._hubs.get(token)
            if hub is None:
                hub = self._hubs[token] = self._make_hub(lambda: self._client(token)).start()
            code = secrets.token_urlsafe(32)
            self._codes[code] = Login(hub, False, time.monotonic() + LOGIN_S)
        client.close()
        return code

    def _client(self, token: str) -> PoolClient:
        """Connect a user to the pool at its address of now: a pool that is started again has another port."""
        return PoolClient(self._own.reader().url, token)

    def _take(self, code: str) -> Login | None:
        login = self._codes.pop(code, None)
        if login is None and code not in self._taken and is_good(code):
            self._taken[code] = time.monotonic() + GOOD_FOR_S
            login = Login(self._own, True, time.monotonic() + LOGIN_S)
        if login is not None:
            login.cookie = secrets.token_urlsafe(32)
            self._logins[login.cookie] = login
        return login

    def _sweep(self) -> None:
        now_s = time.monotonic()
        self._taken = {code: until_s for code, until_s in self._taken.items() if until_s > now_s}
        lasting = [one for one in self._logins.values() if one.until_s > now_s][-LOGINS_MAX:]
        self._logins = {one.cookie: one for one in lasting}
        self._codes = {code: one for code, one in self._codes.items() if one.until_s > now_s}
        used = {id(one.hub) for one in (*lasting, *self._codes.values())}
        for token, hub in list(self._hubs.items()):
            if id(hub) not in used:
                del self._hubs[token]
                hub.stop()

    @cached_property
    def _reached_from_elsewhere(self) -> bool:
        """Return whether this process listens on an address that is not loopback."""
        listening = [
            connection.laddr.ip
            for connection in psutil.Process(os.getpid()).net_connections("inet")
            if connection.status == psutil.CONN_LISTEN
        ]
        return not all(ipaddress.ip_address(address).is_loopback for address in listening)
