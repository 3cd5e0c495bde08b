"""Where workers cannot be closed in, users who do not trust each other do not share a pool unasked."""

from __future__ import annotations

from pathlib import Path

import pytest
from pool_kit import Client, Wire, act, new_user, running_pool

from djinn_lab.protocol import messages
from djinn_lab.protocol.runtime_file import RuntimeInfo

pytestmark = pytest.mark.processes


def refusal(info: RuntimeInfo, token: str) -> str:
    with Wire(info, token) as wire:
        answer = wire.hello()
        assert isinstance(answer, messages.RequestRefused), answer
        return answer.message


def test_a_second_user_is_refused_where_the_sandbox_does_not_hold(tmp_path: Path) -> None:
    with running_pool(tmp_path, "cpu:1", accept_weak_isolation=False) as info:
        (_, ann), (_, bob) = new_user(info), new_user(info)
        with Client(info, ann) as first:
            why = refusal(info, bob)
            assert "does not hold (level none)" in why
            assert "--accept-weak-isolation" in why
            with Client(info, ann) as second:
                assert second.run(act("")).outcome == "done"
            assert first.run(act("")).outcome == "done"


def test_a_second_user_comes_in_once_it_is_accepted(tmp_path: Path) -> None:
    with running_pool(tmp_path, "cpu:1", accept_weak_isolation=True) as info:
        with Client(info, new_user(info)[1]) as ann, Client(info, new_user(info)[1]) as bob:
            assert ann.run(act("")).outcome == bob.run(act("")).outcome == "done"


def test_one_process_for_all_users_has_to_be_accepted(tmp_path: Path) -> None:
    with running_pool(tmp_path, "cpu:1", isolation="none", accept_weak_isolation=False) as info:
        with Client(info, new_user(info)[1]):
            assert "--isolation none" in refusal(info, new_user(info)[1])
