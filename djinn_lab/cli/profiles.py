"""``djinn-lab profiles``."""

from __future__ import annotations

from typing import Annotated

import typer

from djinn_lab.cli.output import print_line, print_table
from djinn_lab.config import default_profile, list_profiles, load_profile, profiles_path


def show_profiles(
    name: Annotated[str | None, typer.Argument(help="Show this profile's settings.")] = None,
) -> None:
    """List profiles, or show one's settings and where each value comes from."""
    if name is not None:
        profile = load_profile(name)
        rows = [(line.path, line.value, line.origin) for line in profile.explain()]
        print_table(f"Profile {profile.name} ({profile.workload})", ("setting", "value", "from"), rows)
        return
    default = default_profile().name
    listed = [
        (
            profile.name,
            "default" if profile.name == default else "",
            profile.workload,
            profile.text("scheduler.objective"),
            f"{profile.scheduler.memory_reserve_fraction:.0%}",
            profile.description,
        )
        for profile in list_profiles()
    ]
    print_table("Profiles", ("name", "", "workload", "objective", "kept free", "description"), listed)
    print_line(f"Your own profiles are in {profiles_path()}; make one with: djinn-lab wizard")
