"""Asks identity providers about tokens that the pool does not know, before a request is looked at.

What they say is put into :class:`~djinn_lab.pool.authentication.Authentication`, so that all else asks that
alone, and at once. A provider is asked about a token once, however many requests come with it; tokens that it
refused are refused for some seconds without asking.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence

import msgspec
from starlette.datastructures import Address
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from djinn_lab.pool.authentication import Authentication, Denial, bearer_secret, token_digest
from djinn_lab.pool.bookkeeping.audit_log import AuditLog, host_of
from djinn_lab.pool.identity.provider import (
    Identity,
    IdentityProvider,
    IdentityRefused,
    IdentityUnknown,
    user_name,
)

REFUSED_S = 5.0
ASK_TIMEOUT_S = 15.0
AT_ONCE_MAX = 8
WAITING_MAX = 200
"""Tokens that wait for an answer. Clients without a valid token must not keep a provider busy for others."""
REASON_CHARS_MAX = 200

log = logging.getLogger(__name__)


class Admission:
    """For the event loop's thread alone."""

    def __init__(
        self,
        authentication: Authentication,
        providers: Sequence[IdentityProvider],
        audit: AuditLog,
        now_s: Callable[[], float],
    ) -> None:
        self.providers = providers
        self._authentication, self._audit, self._now_s = authentication, audit, now_s
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._vouched: dict[str, tuple[IdentityProvider, str, Identity]] = {}
        """The provider, the token and what it said, by digest."""
        self._slots = asyncio.Semaphore(AT_ONCE_MAX)

    async def resolve(self, authorization: str | None, client: Address | None) -> None:
        """Find out about the token of a header, if a provider may know it."""
        secret = bearer_secret(authorization)
        if not self.providers or not secret:
            return
        digest = token_digest(secret)
        if self._authentication.knows(digest):
            self._confirm(digest)
            return
        provider = next((one for one in self.providers if one.may_know(secret)), None)
        if provider is None:
            return
        if digest not in self._asking and len(self._asking) >= WAITING_MAX:
            self._deny(digest, Denial("Too many logins are under way. Try again.", reason="too many logins"))
            return
        await asyncio.shield(self._ask_soon(provider, secret, digest, host_of(client)))

    def confirm(self, digests: Iterable[str]) -> None:
        """Ask again about those of these tokens for which that is due; forget what has ended."""
        for digest in digests:
            self._confirm(digest)
        self._authentication.sweep()
        for digest, (_, _, said) in list(self._vouched.items()):
            if said.expires_at < self._now_s():
                del self._vouched[digest]

    def _confirm(self, digest: str) -> None:
        """Ask again about a token for which that is due. What was said before counts meanwhile."""
        known = self._vouched.get(digest)
        if known is not None and known[2].ask_again_at is not None and known[2].ask_again_at <= self._now_s():
            self._ask_soon(known[0], known[1], digest, "")

    def _ask_soon(
        self, provider: IdentityProvider, secret: str, digest: str, host: str
    ) -> asyncio.Task[None]:
        task = self._asking.get(digest)
        if task is None:
            work = self._ask(provider, secret, digest, host)
            task = self._asking[digest] = asyncio.get_running_loop().create_task(work, name="identify")
            task.add_done_callback(lambda _: self._asking.pop(digest, None))
        return task

    async def _ask(self, provider: IdentityProvider, secret: str, digest: str, host: str) -> None:
        try:
            async with asyncio.timeout(ASK_TIMEOUT_S), self._slots:
                said = await provider.identify(secret)
        except IdentityRefused as refusal:
            why = f"with a token that {provider.name} refused ({str(refusal)[:REASON_CHARS_MAX]})"
            whose = f" of {refusal.user}" if refusal.user else ""
            self._deny(digest, Denial(str(refusal), refusal.user, why + whose))
        except (IdentityUnknown, TimeoutError) as error:
            self._unanswered(provider, digest, str(error) or f"{provider.name} does not answer.")
        except Exception:
            log.exception("the identity provider %s failed", provider.name)
            self._unanswered(provider, digest, f"{provider.name} failed.")
        else:
            self._admit(provider, secret, digest, said, host)

    def _admit(self, provider: IdentityProvider, secret: str, digest: str, said: Identity, host: str) -> None:
        user = user_name(provider.name, said.user)
        if digest not in self._vouched:
            about = f"by {provider.name} as {said.role.label}, from {host}"
            self._audit.note(user, "login", about)
        self._vouched[digest] = (provider, secret, said)
        self._authentication.admit(digest, provider.name, user, said.role, said.expires_at, said.scopes)

    def _unanswered(self, provider: IdentityProvider, digest: str, why: str) -> None:
        """A token that was good before stays so until it ends, and is asked about again in some seconds."""
        known = self._vouched.get(digest)
        if known is not None and self._authentication.is_valid(digest):
            again = self._now_s() + REFUSED_S
            self._vouched[digest] = (*known[:2], msgspec.structs.replace(known[2], ask_again_at=again))
        else:
            reason = f"with a token that {provider.name} could not be asked about"
            self._deny(digest, Denial(why, reason=reason))

    def _deny(self, digest: str, denial: Denial) -> None:
        self._vouched.pop(digest, None)
        self._authentication.refuse(digest, denial, self._now_s() + REFUSED_S)


class AdmitTokens:
    """ASGI middleware: ask identity providers before anything else happens."""

    def __init__(self, app: ASGIApp, admission: Admission) -> None:
        self._app = app
        self._admission = admission

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            connection = HTTPConnection(scope)
            await self._admission.resolve(connection.headers.get("authorization"), connection.client)
        await self._app(scope, receive, send)
