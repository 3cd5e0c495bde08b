"""A damaged file of a queue policy is refused by name, or read."""

from __future__ import annotations

from pathlib import Path

import msgspec
from damage import damaged
from hypothesis import HealthCheck, given, settings

from djinn_lab.errors import OptionError
from djinn_lab.jobs.decision import DEFAULT
from djinn_lab.pool.policy_file import read_policy

POLICY = msgspec.json.format(msgspec.json.encode(msgspec.structs.replace(DEFAULT, name="mine")), indent=1)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=damaged((POLICY,)))
def test_damaged_policy_is_refused_by_name(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    path.write_bytes(content)
    refused = ""
    try:
        read_policy(str(path))
    except OptionError as error:
        refused = str(error)
    assert not refused or path.name in refused
