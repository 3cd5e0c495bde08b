"""The part of the REST API about tokens: a user's own, and for admins all."""

from __future__ import annotations

import math
from typing import Annotated

import msgspec
from fastapi import Depends, FastAPI, HTTPException, Request, Response

from djinn_lab.pool.api.responses import answer, documented, reader, takes
from djinn_lab.pool.authentication import (
    Authentication,
    Role,
    Token,
    User,
    checked_role,
    expiry,
)
from djinn_lab.pool.context import PoolContext
from djinn_lab.pool.database.users import write_tokens
from djinn_lab.pool.scopes import checked_scopes, within
from djinn_lab.protocol.rest.users import NewToken, TokenMade, TokenRotation, TokenView

OVERLAP_S_MAX = 30 * 86_400.0


def add_token_routes(app: FastAPI, context: PoolContext) -> None:
    """List, make, rotate, revoke. A batch notebook's own token may do none of these."""
    authentication, clock = context.authentication, context.driver.core.clock

    def view(token: Token, asking: User) -> TokenView:
        role, scopes = authentication.role_of(token).label, tuple(sorted(token.scopes or ()))
        in_use = token.digest == asking.token
        return TokenView(token.user, token.name, role, token.created_at, token.expires_at, in_use, scopes)

    async def store(user: str) -> None:
        await context.store.commit(write_tokens(user, authentication.tokens(user)))

    @app.get("/v1/tokens", responses=documented(list[TokenView]), summary="Own tokens; all for admins")
    async def tokens(user: Annotated[User, Depends(reader)]) -> Response:
        theirs = None if user.role >= Role.ADMIN else user.name
        return answer([view(token, user) for token in authentication.tokens(theirs)])

    @app.post(
        "/v1/tokens",
        openapi_extra=takes(NewToken),
        status_code=201,
        responses=documented(TokenMade, 201),
        summary="Make a token",
    )
    async def make_token(request: Request, user: Annotated[User, Depends(reader)]) -> Response:
        try:
            new = msgspec.json.decode(await request.body(), type=NewToken)
            owner = _owner(authentication, user, new.user or user.name)
            most = min(owner.role, user.role)
            role = checked_role(new.role) if new.role else user.token_role
            expires_at = expiry(new.days, clock.now_s())
            if new.role and role > most:
                raise ValueError(f"A token of {owner.name} has here the role {most.label} at most")
            scopes = checked_scopes(new.scopes) or user.scopes
            if not within(scopes, user.scopes):
                limit = " and ".join(sorted(user.scopes or ()))
                raise ValueError(f"A token that is limited to {limit} makes none that may do more")
            token, secret = authentication.issue(owner.name, new.name, role, expires_at, scopes)
        except ValueError as error:
            raise HTTPException(422, f"{error}.") from None
        await store(owner.name)
        return answer(TokenMade(view(token, user), secret), 201)

    @app.post(
        "/v1/tokens/{owner}/{name}/rotate",
        openapi_extra=takes(TokenRotation),
        responses=documented(TokenMade),
        summary="Make a new secret for a token",
    )
    async def rotate_token(
        owner: str, name: str, request: Request, user: Annotated[User, Depends(reader)]
    ) -> Response:
        _check_reach(authentication, user, _owner(authentication, user, owner), name)
        try:
            wanted = msgspec.json.decode(await request.body(), type=TokenRotation)
            _check_overlap(wanted.overlap_s)
            made, secret = authentication.rotate(owner, name, wanted.days, wanted.overlap_s)
        except ValueError as error:
            raise HTTPException(422, f"{error}.") from None
        except LookupError as error:
            raise HTTPException(404, f"{error.args[0]}.") from None
        await store(owner)
        return answer(TokenMade(view(made[0], user), secret))

    @app.delete("/v1/tokens/{owner}/{name}", status_code=204, summary="End a token at once")
    async def revoke_token(owner: str, name: str, user: Annotated[User, Depends(reader)]) -> None:
        _check_reach(authentication, user, _owner(authentication, user, owner), name)
        try:
            authentication.revoke(owner, name)
        except LookupError as error:
            raise HTTPException(404, f"{error.args[0]}.") from None
        await store(owner)


def _owner(authentication: Authentication, user: User, name: str) -> User:
    """Return whose token it is. Raises HTTPException unless it is the user's own, or an admin asks."""
    if user.notebook:
        raise HTTPException(403, "A batch notebook has no say in tokens.")
    if name != user.name and user.role < Role.ADMIN:
        raise HTTPException(403, f"This needs the role admin; {user.name} is {user.role.label}.")
    found = authentication.named(name)
    if found is None:
        raise HTTPException(404, f"There is no user {name[:80]!r}.")
    if found.provider:
        raise HTTPException(403, f"{name} logs in by {found.provider}, and has no tokens of this pool.")
    return found


def _check_reach(authentication: Authentication, user: User, owner: User, name: str) -> None:
    """Raise HTTPException where a token would rotate or revoke one that may do more than itself."""
    for token in authentication.tokens(owner.name):
        if token.name == name and not token.within(user.token_role, user.scopes):
            raise HTTPException(403, "A token with a limit changes none that may do more than itself.")


def _check_overlap(overlap_s: float) -> None:
    if not math.isfinite(overlap_s) or not 0 <= overlap_s <= OVERLAP_S_MAX:
        raise ValueError(f"The old secret stays valid for 0 to {OVERLAP_S_MAX:.0f} s, not {overlap_s:g}")
