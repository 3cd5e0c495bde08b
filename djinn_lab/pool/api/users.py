"""The part of the REST API about users."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import Depends, FastAPI, HTTPException, Request, Response

from djinn_lab import jobs
from djinn_lab.jobs.fairness import Limits
from djinn_lab.pool.api.responses import admin, answer, documented, takes
from djinn_lab.pool.authentication import FIRST_TOKEN, Role, User, expiry
from djinn_lab.pool.context import PoolContext
from djinn_lab.pool.database.shares import forget_targets
from djinn_lab.pool.database.users import delete_user, write_role, write_tokens, write_user
from djinn_lab.protocol.rest.users import NewUser, RoleChoice, UserToken, UserView


def add_user_routes(app: FastAPI, context: PoolContext) -> None:
    """List, add, change the role, remove."""
    authentication = context.authentication

    @app.get("/v1/users", responses=documented(list[UserView]), summary="All users (admins)")
    async def users(_user: Annotated[User, Depends(admin)]) -> Response:
        return answer([_view(user) for user in authentication.users()])

    @app.post(
        "/v1/users",
        openapi_extra=takes(NewUser),
        status_code=201,
        responses=documented(UserToken, 201),
        summary="Add a user (admins)",
    )
    async def add_user(request: Request, _user: Annotated[User, Depends(admin)]) -> Response:
        try:
            new = msgspec.json.decode(await request.body(), type=NewUser)
            expires_at = expiry(new.days, context.driver.core.clock.now_s())
            user = authentication.add(new.name, new.role, new.account)
        except ValueError as error:
            raise HTTPException(422, str(error)) from None
        token, secret = authentication.issue(user.name, FIRST_TOKEN, Role.ADMIN, expires_at)
        await context.store.commit(write_user(user.name, user.role.label, user.above))
        await context.store.commit(write_tokens(user.name, [token]))
        return answer(UserToken(user.name, user.role.label, secret, expires_at), 201)

    @app.patch(
        "/v1/users/{name}",
        openapi_extra=takes(RoleChoice),
        responses=documented(UserView),
        summary="Give a user another role (admins)",
    )
    async def set_role(name: str, request: Request, user: Annotated[User, Depends(admin)]) -> Response:
        try:
            role = msgspec.json.decode(await request.body(), type=RoleChoice).role
            changed = authentication.set_role(name, role)
        except ValueError as error:
            raise HTTPException(422, f"{error}.") from None
        except LookupError as error:
            raise HTTPException(404, f"{error.args[0]}.") from None
        await context.store.commit(write_role(name, changed.role.label))
        if changed.role < Role.USER:
            context.notebooks.cancel_all_of(name, f"because {user.name} gave {name} the role viewer")
        return answer(_view(changed))

    @app.delete("/v1/users/{name}", status_code=204, summary="Remove a user (admins)")
    async def remove_user(name: str, user: Annotated[User, Depends(admin)]) -> None:
        removed = authentication.named(name)
        if removed is None or not authentication.remove(name):
            raise HTTPException(404, f"There is no user {name[:80]!r} that can be removed.")
        await context.store.commit(delete_user(name))
        forget = jobs.SharesChanged(
            context.driver.core.clock.now_s(), removed.account, weight=1.0, limits=Limits(), min_runtime_s=0.0
        )
        context.driver.apply_setting(forget)
        await context.store.commit(forget_targets(removed.account))
        context.notebooks.cancel_all_of(name, f"because {name} was removed by {user.name}")
        for session in context.driver.registry:
            if session.user == name:
                context.driver.close(session, f"{name} was removed by {user.name}")


def _view(user: User) -> UserView:
    return UserView(user.name, user.role.label, user.account)
