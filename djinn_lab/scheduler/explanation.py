"""A schedule's reasons as sentences: what was decided, and the numbers that decided it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from djinn_lab.scheduler.costs import DeviceProfile
from djinn_lab.scheduler.profiles import SchedulerProfile
from djinn_lab.scheduler.schedule import ExecutionSchedule
from djinn_lab.srg.graph import SRG
from djinn_lab.srg.patterns.repeats import find_repeats
from djinn_lab.units import counted, format_bytes, format_joules, format_seconds, listed


def explain_schedule(
    srg: SRG,
    schedule: ExecutionSchedule,
    profile: SchedulerProfile,
    others: Sequence[ExecutionSchedule],
    left_out: Sequence[DeviceProfile],
    changed_by: Sequence[str],
    bound_by: str = "",
) -> tuple[str, ...]:
    """Return the reasons as sentences; ``others``: placements that lost. ``left_out``: devices short of
    memory. ``changed_by``: strategies. ``bound_by``: why only one device was a candidate."""
    return (
        _device(schedule, profile, others, _only_candidate(left_out, bound_by)),
        *_devices_left_out(schedule, left_out),
        _order(srg, changed_by),
        _memory(srg, schedule, profile),
        *_offload(schedule),
        _time(schedule),
        _transfers(schedule),
        _groups(schedule),
        *_repeats(srg),
        *_caveats(srg, schedule),
    )


def _only_candidate(left_out: Sequence[DeviceProfile], bound_by: str) -> str:
    """Return why a schedule without rivals has none."""
    if left_out:
        return "the only candidate with enough memory"
    return bound_by or "the only candidate"


def _device(
    schedule: ExecutionSchedule,
    profile: SchedulerProfile,
    others: Sequence[ExecutionSchedule],
    only_candidate: str,
) -> str:
    name, predicted = schedule.device.device, format_seconds(schedule.predicted_s)
    if not others:
        return f"Device {name}: {only_candidate}, {predicted} predicted."
    if profile.objective == "latency":
        rivals = ", ".join(f"{format_seconds(o.predicted_s)} on {o.device.device}" for o in others)
        return f"Device {name}: fastest with {predicted} predicted, against {rivals}."
    if profile.objective == "throughput":
        rivals = ", ".join(f"{format_seconds(o.interval_s)} on {o.device.device}" for o in others)
        every = format_seconds(schedule.interval_s)
        return f"Device {name}: most such graphs in a time, one every {every}, against {rivals}."
    if profile.objective == "energy":
        return _by_energy(schedule, others)
    rivals = ", ".join(f"{_fill(other):.0%} on {other.device.device}" for other in others)
    return f"Device {name}: its memory is filled least, {_fill(schedule):.0%} at the peak, against {rivals}."


def _by_energy(schedule: ExecutionSchedule, others: Sequence[ExecutionSchedule]) -> str:
    """Say which energies were compared, and name the devices whose power is unknown."""
    unknown = [one.device.device for one in (schedule, *others) if one.joules is None]
    unsaid = f" The power of {listed(unknown)} is unknown." if unknown else ""
    name = schedule.device.device
    if schedule.joules is None:
        rivals = ", ".join(f"{format_seconds(o.predicted_s)} on {o.device.device}" for o in others)
        fastest = f"fastest with {format_seconds(schedule.predicted_s)} predicted, against {rivals}"
        return f"Device {name}: {fastest}, as no energy can be compared.{unsaid}"
    known = [other for other in others if other.joules is not None]
    rivals = ", ".join(f"{_energy(other)} on {other.device.device}" for other in known)
    against = f", against {rivals}" if rivals else ""
    return f"Device {name}: least energy with {_energy(schedule)} predicted{against}.{unsaid}"


def _energy(schedule: ExecutionSchedule) -> str:
    assert schedule.joules is not None
    seconds, watts = format_seconds(schedule.predicted_s), schedule.device.watts
    return f"{format_joules(schedule.joules)} ({seconds} at {watts:g} W)"


def _fill(schedule: ExecutionSchedule) -> float:
    device = schedule.device
    return (device.used_bytes + schedule.memory.peak_bytes) / max(device.memory_bytes, 1)


def _devices_left_out(schedule: ExecutionSchedule, left_out: Sequence[DeviceProfile]) -> Iterator[str]:
    peak = format_bytes(schedule.memory.peak_bytes)
    for device in left_out:
        fits = schedule.memory.peak_bytes <= device.memory_bytes - device.used_bytes
        short = "leaves less than the reserve free of" if fits else "does not fit"
        yield (
            f"Device {device.device}: left out, the peak of {peak} {short} its "
            f"{format_bytes(device.memory_bytes)} with {format_bytes(device.used_bytes)} in use."
        )


def _order(srg: SRG, changed_by: Sequence[str]) -> str:
    if changed_by:
        return f"Order: {len(srg.nodes)} nodes, rearranged by {', '.join(changed_by)}; results are the same."
    return f"Order: {len(srg.nodes)} nodes as the cell wrote them."


def _memory(srg: SRG, schedule: ExecutionSchedule, profile: SchedulerProfile) -> str:
    memory = schedule.memory
    where = "before the first node"
    if memory.peak_position is not None:
        node = schedule.nodes[memory.peak_position]
        where = f"at node {node.node} ({node.op}{', line ' + str(node.line) if node.line else ''})"
    short = ", which no device does" if memory.peak_bytes > schedule.limit_bytes else ""
    if schedule.offload is not None:
        short = ", which this one does not"
    return (
        f"Memory: peak {format_bytes(memory.peak_bytes)} {where}; inputs and weights are "
        f"{format_bytes(memory.resident_bytes)}; {format_bytes(schedule.limit_bytes)} leave "
        f"{profile.reserve_fraction:.0%} free{short}; {format_bytes(memory.kept_bytes)} stay afterwards."
    )


def _offload(schedule: ExecutionSchedule) -> Iterator[str]:
    plan, device = schedule.offload, schedule.device
    if plan is None:
        return
    if not plan.moved_bytes:
        used = format_bytes(device.used_bytes)
        yield f"Others: the {used} that they hold on {device.device} are parked first."
        return
    out, back = format_bytes(plan.out_bytes), format_bytes(plan.in_bytes)
    copies = format_seconds(device.offload_s(plan.moved_bytes))
    yield (
        f"Offload: {device.device} has {format_bytes(device.memory_bytes)}, so {out} leave it while the cell "
        f"runs and {back} come back before the ops that read them, {copies} of copies."
    )


def _time(schedule: ExecutionSchedule) -> str:
    seconds = {"compute": 0.0, "memory": 0.0, "overhead": 0.0}
    for node in schedule.nodes:
        seconds[node.bound] += node.end_s - node.start_s
    total = sum(seconds.values()) or 1.0
    shares = ", ".join(f"{share / total:.0%} {bound}" for bound, share in seconds.items())
    return f"Time: {format_seconds(sum(seconds.values()))} of ops, bound by {shares}."


def _transfers(schedule: ExecutionSchedule) -> str:
    def total(direction: str) -> str:
        moved = [transfer.nbytes for transfer in schedule.transfers if transfer.direction == direction]
        return f"{counted(len(moved), 'tensor')} ({format_bytes(sum(moved))})"

    return f"Transfers: {total('upload')} up, {total('fetch')} down."


def _groups(schedule: ExecutionSchedule) -> str:
    groups = schedule.groups
    members = sum(map(len, groups))
    return f"Co-location: {members} view and in-place nodes stay with their base in {len(groups)} groups."


def _repeats(srg: SRG) -> Iterator[str]:
    repeats = find_repeats(srg.calls)
    if repeats is not None and repeats.length * repeats.blocks >= len(srg.nodes) / 3:
        yield (
            f"Repeats: nodes {repeats.first} to {repeats.last} are {repeats.blocks} equal blocks of "
            f"{repeats.length}; {len(set(srg.calls))} different calls were priced for {len(srg.nodes)} nodes."
        )


def _caveats(srg: SRG, schedule: ExecutionSchedule) -> Iterator[str]:
    if not schedule.device.measured:
        yield f"Caution: the rates of {schedule.device.device} are defaults, it has not been measured yet."
    if srg.unknown_flops:
        yield f"Caution: FLOPs unknown and counted as 0 for {', '.join(srg.unknown_flops)}."
