"""Tokens and roles."""

from __future__ import annotations

import pytest

from djinn_lab.pool.authentication import Authentication, Role, new_token


def test_the_owner_is_an_admin_and_stays() -> None:
    token = new_token()
    users = Authentication(token)
    owner = users.user_of(f"Bearer {token}")
    assert owner is not None
    assert owner.role is Role.ADMIN
    assert not users.remove(owner.name)
    assert users.user_of(f"bearer  {token} ") == owner


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer ", "Basic abc", "Bearer wrong", "abc"])
def test_no_token_no_user(header: str | None) -> None:
    assert Authentication("right").user_of(header) is None


def test_users_come_and_go() -> None:
    users = Authentication("owner's")
    ann = users.add("ann", "operator")
    assert users.add("eve", "user", "vision/train/eve").account == "vision/train/eve", "not .../eve/eve"
    assert users.add("kim", "user", "kim").account == "kim"
    _, token = users.issue("ann", "first", ann.role, None)
    found = users.user_of(f"Bearer {token}")
    assert found is not None
    assert (found.name, found.role) == ("ann", Role.OPERATOR)
    assert Role.USER < ann.role < Role.ADMIN
    assert users.remove("ann")
    assert users.user_of(f"Bearer {token}") is None
    assert not users.remove("ann")


@pytest.mark.parametrize(
    ("name", "role"), [("", "user"), ("a b", "user"), ("x" * 65, "user"), ("ann", "god")]
)
def test_bad_users_are_refused(name: str, role: str) -> None:
    with pytest.raises(ValueError, match=r"name|role"):
        Authentication("t").add(name, role)
