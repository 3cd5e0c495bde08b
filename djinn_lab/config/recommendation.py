"""Settings for a machine and a workload, each with one sentence that gives the reason in numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from djinn_lab.config.detection import Facts
from djinn_lab.config.effects import OwnWork, best_objective
from djinn_lab.config.fields import Value
from djinn_lab.config.profiles import BUILT_IN, Profile, Workload
from djinn_lab.units import counted, format_bytes

MEMORY_SHARE: dict[Workload, float] = {
    "basic_inference": 0.4,
    "llm_serving": 0.6,
    "research_training": 0.6,
}
"""Part of the available memory that the CPU devices get together; notebooks get the rest."""
_STEP_BYTES = 64 * 2**20
_SMALL_DEVICE_BYTES = 2**30
_LLM_DEVICE_BYTES = 4 * 2**30
_TRAINING_CORES_A_DEVICE = 8
_NOT_SCARCE_BYTES = 2**60
_MEMORY_SIZE = re.compile(r"[\s-]*\d+\s?(GB|GiB)\b", re.IGNORECASE)
"""In the name of a CUDA device, where devices of one model have more or less memory."""


class Recommendation(msgspec.Struct, frozen=True):
    """Recommended settings. ``reasons``: setting path to sentence, for every setting."""

    profile: Profile
    reasons: Mapping[str, str]


class _Choice(msgspec.Struct, frozen=True):
    value: Value
    reason: str


def recommend(
    facts: Facts, workload: Workload, cpu_devices: int | None = None, work: OwnWork | None = None
) -> Recommendation:
    """Fit the built-in profile of ``workload`` to the machine; memory and threads are divided among
    ``cpu_devices`` where the user has chosen how many. ``work``: the user's own graphs, by which the
    objective is chosen where there are any."""
    devices, count = _devices(facts, workload)
    count = cpu_devices or count
    on_cpu = devices.value not in ("cuda", "auto")
    memory = _memory(facts, workload, count) if on_cpu else _Choice(None, _memory_elsewhere(facts))
    threads = _threads(facts, count) if on_cpu else _Choice(None, "CUDA devices leave the choice to the pool")
    objective = _objective(facts, workload, memory.value)
    base = BUILT_IN[workload]
    if work is not None:
        usual = msgspec.structs.replace(base.scheduler, objective=str(objective.value))
        objective = _Choice(*best_objective(work, usual))
    reasons = _workload_reasons(base)
    profile = base
    detected = {
        "pool.devices": devices,
        "pool.memory_bytes": memory,
        "pool.threads": threads,
        "scheduler.objective": objective,
    }
    for path, choice in detected.items():
        reasons[path] = choice.reason
        if choice.value != base.value(path):
            profile = profile.with_value(path, choice.value, "detected")
    return Recommendation(profile, reasons)


def _devices(facts: Facts, workload: Workload) -> tuple[_Choice, int]:
    cuda = facts.cuda
    if cuda.status == "found":
        names = ", ".join(
            f"{device.name} with {format_bytes(device.memory_bytes)}" for device in cuda.devices
        )
        return _Choice("cuda", f"{len(cuda.devices)} CUDA device(s) found: {names}"), len(cuda.devices)
    if cuda.status == "unknown":
        reason = (
            f"It is not known whether this machine has CUDA devices: {cuda.detail}; the pool will look again"
        )
        return _Choice("auto", reason), 2
    count, why = _cpu_devices(facts, workload)
    return _Choice(f"cpu:{count}", f"No CUDA device ({cuda.detail}); {why}"), count


def _cpu_devices(facts: Facts, workload: Workload) -> tuple[int, str]:
    cores = facts.whole_cores
    available = facts.memory_bytes
    if cores == 1:
        return 1, "one usable core carries one device"
    if workload == "research_training":
        count = max(1, min(4, cores // _TRAINING_CORES_A_DEVICE))
        return count, f"training is given {cores // count} of {cores} cores on each device"
    each = (available or 0) * MEMORY_SHARE[workload] / 2
    need = _LLM_DEVICE_BYTES if workload == "llm_serving" else _SMALL_DEVICE_BYTES
    if available is not None and each < need:
        return (
            1,
            f"two would have only {format_bytes(each)} each, and this workload needs {format_bytes(need)}",
        )
    return 2, f"{cores} cores are shared by two devices, so that two people can run cells at once"


def _memory(facts: Facts, workload: Workload, count: int) -> _Choice:
    available = facts.memory_bytes
    if available is None:
        return _Choice(None, f"Left to the pool, since {facts.memory_detail}")
    share = MEMORY_SHARE[workload]
    each = max(_STEP_BYTES, int(available * share / count) // _STEP_BYTES * _STEP_BYTES)
    sentence = (
        f"{share:.0%} of the {format_bytes(available)} {facts.memory_detail}, for {counted(count, 'device')}"
    )
    return _Choice(each, sentence)


def _memory_elsewhere(facts: Facts) -> str:
    if facts.cuda.status == "found":
        return "CUDA devices bring their own memory"
    return "Left to the pool until it is known which devices there are"


def _threads(facts: Facts, count: int) -> _Choice:
    each = max(1, facts.whole_cores // count)
    return _Choice(each, f"{counted(count, 'device')} on {facts.cores:g} usable cores")


def _objective(facts: Facts, workload: Workload, cpu_bytes: Value) -> _Choice:
    if workload == "research_training":
        models = {_MEMORY_SIZE.sub("", device.name) for device in facts.cuda.devices}
        if len(models) > 1:
            return _Choice("latency", "The CUDA devices are of different models, so the fastest is taken")
        return _Choice(
            "memory", "Training keeps activations until the backward pass, so peak memory decides what fits"
        )
    if facts.cuda.status == "found":
        free = min(device.free_bytes for device in facts.cuda.devices)
        need = 2 * _LLM_DEVICE_BYTES if workload == "llm_serving" else 2 * _SMALL_DEVICE_BYTES
    else:
        free = cpu_bytes if isinstance(cpu_bytes, int) else _NOT_SCARCE_BYTES
        need = _LLM_DEVICE_BYTES if workload == "llm_serving" else _SMALL_DEVICE_BYTES
    if free < need:
        reason = (
            f"A device has {format_bytes(free)}, and this workload is at ease from {format_bytes(need)} on"
        )
        return _Choice("memory", reason)
    return _Choice("latency", "Memory is not scarce here, so the fastest device is taken")


def _workload_reasons(base: Profile) -> dict[str, str]:
    llm = base.workload == "llm_serving"
    training = base.workload == "research_training"
    reserve = f"{base.scheduler.memory_reserve_fraction:.0%}"
    return {
        "session.priority": "Long training cells let interactive ones go first"
        if training
        else "Interactive cells of equal priority go by fair share",
        "session.progress_after_s": f"{base.session.progress_after_s:g} s suits "
        + ("text that is read as it appears" if llm else "long loops" if training else "short cells"),
        "pool.host_bytes": "Left to the pool: a share of what is free, at most twice a CPU device's memory",
        "pool.disk_bytes": "Idle sessions stay in memory until you give them disk space",
        "pool.link_bytes_per_s": "CPU devices park and restore at a rate that leaves memory to running cells",
        "pool.cost_estimator": "Measured curves of each device predict run times, and runs correct them",
        "session.quiet": "Progress and the report line are shown until you switch them off",
        "session.numbers": "GPUs compute as torch does by itself until you ask for the same bits each time",
        "scheduler.memory_reserve_fraction": f"{reserve} is kept free "
        + ("for a KV cache that grows with every token" if llm else "for buffers that are not in the plan"),
    }
