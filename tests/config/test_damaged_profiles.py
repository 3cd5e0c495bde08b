"""A damaged file of profiles is refused by name, or read."""

from __future__ import annotations

from damage import damaged
from hypothesis import given

from djinn_lab.config import default_profile, list_profiles, profiles_path
from djinn_lab.errors import ProfileError

PROFILES = b"""default = "mine"

[profiles.mine]
workload = "llm_serving"
description = "a"

[profiles.mine.pool]
devices = "cpu:2"
memory_bytes = "3GiB"
threads = 2

[profiles.mine.session]
priority = "HIGH"
quiet = true

[profiles.other]
workload = "research_training"
"""


@given(content=damaged((PROFILES,)))
def test_damaged_profiles_are_refused_by_name(content: bytes) -> None:
    path = profiles_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    refused = ""
    try:
        list_profiles()
        default_profile()
    except ProfileError as error:
        refused = str(error)
    assert not refused or path.name in refused
