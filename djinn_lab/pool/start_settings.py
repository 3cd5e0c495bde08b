"""What a pool was started with, for a later start beside it: which of its options have no effect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from djinn_lab.pool.database.address import checked_url, shown
from djinn_lab.pool.devices.plans import DevicePlan, plan_devices
from djinn_lab.pool.engines import LOCAL_ENGINE, RAY_ENGINE
from djinn_lab.pool.policy_file import read_policy
from djinn_lab.protocol.runtime_file import RuntimeInfo, Setting
from djinn_lab.units import counted, format_bytes, format_seconds

if TYPE_CHECKING:
    from djinn_lab.pool.server import PoolOptions

SIZES = {
    "memory_bytes": "--memory",
    "host_bytes": "--host-memory",
    "disk_bytes": "--disk",
    "link_bytes_per_s": "--link-rate",
    "upload_bytes_per_user": "--upload-bytes-per-user",
}
"""Settings that are numbers of bytes, and the options that set them."""
DURATIONS = {"detached_s": "--detached-for", "nodes_idle_s": "--nodes-idle-for"}
"""The same for seconds."""


def settings_of(options: PoolOptions) -> dict[str, Setting]:
    """Return the settings of a pool by the names of :func:`djinn_lab.pool.launch.start_pool`'s parameters.
    Sizes are those of one device."""
    first, policy = options.plans[0], options.queue_policy
    return {
        "devices": _devices(options.plans),
        "memory_bytes": first.memory_bytes,
        "threads": first.threads,
        "host_bytes": first.host_bytes,
        "disk_bytes": first.disk_bytes,
        "link_bytes_per_s": first.link_bytes_per_s,
        "memory_policy": options.memory_policy,
        "queue_policy": policy if isinstance(policy, str) else policy.name,
        "cost_estimator": options.cost_estimator,
        "region_compiler": first.region_compiler,
        "engine": LOCAL_ENGINE if options.cluster is None else RAY_ENGINE,
        "address": "" if options.cluster is None else options.cluster.address,
        "nodes_max": 0 if options.scaling is None else options.scaling.nodes_max,
        "nodes_idle_s": 0 if options.scaling is None else round(options.scaling.idle_s),
        "notebook_slots": options.notebook_slots,
        "notebooks_for": options.notebooks_for,
        "database": shown(options.database),
        "standby": options.standby,
        "host": options.host,
        "tls": options.certificate is not None,
        "tls_certificate": options.certificate.certificate if options.certificate else "",
        "tls_key": options.certificate.key if options.certificate else "",
        "insecure_without_tls": options.certificate is None,
        "sessions_per_user": options.limits.sessions,
        "connections_per_user": options.limits.connections,
        "upload_bytes_per_user": options.limits.upload_bytes or 0,
        "detached_s": round(options.detached_s),
        "requests_per_s": round(options.limits.requests_per_s),
        "isolation": options.isolation,
        "accept_weak_isolation": options.accept_weak_isolation,
        "identity": options.identity.encoded(),
    }


def describe_running(info: RuntimeInfo) -> str:
    """Return ``cpu:2, 2.0 GiB and 1 thread each``; nothing for a pool of an older version."""
    have = info.settings
    if not have:
        return ""
    each = f"{format_bytes(int(have['memory_bytes']))} and {counted(int(have['threads']), 'thread')} each"
    on_each = " on each host" if have.get("engine") == RAY_ENGINE else ""
    return f"{have['devices']}{on_each}, {each}"


def without_effect(info: RuntimeInfo, given: Mapping[str, Setting | None]) -> list[str]:
    """Describe each given option that the running pool was not started with, as it would be typed.

    ``given``: checked values of :func:`djinn_lab.pool.launch.start_pool`'s parameters; None: not given."""
    have = {**info.settings, "port": urlsplit(info.url).port or 0}
    found = []
    for name, value in given.items():
        if value is None or _comparable(name, value) == have.get(name):
            continue
        if name == "identity":
            found.append("those of identity providers")
            continue
        typed = _option(name) if value is True else f"{_option(name)} {_text(name, value)}"
        now = f" (the pool has {_text(name, have[name])})" if name in have and value is not True else ""
        found.append(typed + now)
    return found


def _comparable(name: str, value: Setting) -> Setting:
    """Return an option's value as :func:`settings_of` has it."""
    match name:
        case "devices":
            return _devices(plan_devices(str(value), None, None))
        case "queue_policy":
            policy = read_policy(str(value))
            return policy if isinstance(policy, str) else policy.name
        case "tls_certificate" | "tls_key":
            return str(Path(str(value)).absolute())
        case "database":
            return shown(checked_url(str(value)))
    return value


def _devices(plans: Sequence[DevicePlan]) -> str:
    """Return how devices are asked for; those of one host, where there are several."""
    return f"{plans[0].kind}:{sum(plan.host == plans[0].host for plan in plans)}"


def _option(name: str) -> str:
    if name in DURATIONS:
        return DURATIONS[name]
    return SIZES.get(name) or "--" + name.replace("_", "-")


def _text(name: str, value: Setting) -> str:
    if name in DURATIONS:
        return format_seconds(float(value))
    return format_bytes(int(value)) if name in SIZES else str(value) or "none"
