"""Settings and profiles: frozen, validated, TOML in and out, and the wizard that recommends them."""

from djinn_lab.config.fields import Issue
from djinn_lab.config.profiles import (
    BUILT_IN,
    WORKLOADS,
    Explained,
    PoolSettings,
    Profile,
    SchedulerSettings,
    SessionSettings,
    Workload,
)
from djinn_lab.config.profiles_text import DEFAULT_NAME
from djinn_lab.config.store import (
    config_directory,
    default_profile,
    list_profiles,
    load_profile,
    profiles_path,
    save_profile,
)

__all__ = [
    "BUILT_IN",
    "DEFAULT_NAME",
    "WORKLOADS",
    "Explained",
    "Issue",
    "PoolSettings",
    "Profile",
    "SchedulerSettings",
    "SessionSettings",
    "Workload",
    "config_directory",
    "default_profile",
    "list_profiles",
    "load_profile",
    "profiles_path",
    "save_profile",
]
