"""What each setting comes to for a user, in seconds, waits and memory: one sentence a setting.

The wizard's faces show it beside a value before it is stored. Where the user's own last cells are known, the
figures are theirs.
"""

from __future__ import annotations

from collections.abc import Callable

from djinn_lab.config.detection import Facts
from djinn_lab.config.effects import OwnWork, PredictedEffect
from djinn_lab.config.fields import BUILT_IN_ESTIMATOR, PRIORITIES
from djinn_lab.config.profiles import Profile
from djinn_lab.units import counted, format_bytes, format_seconds, listed

_EXAMPLE_BYTES = 2**30


class Consequences:
    """Answers for one profile on one machine."""

    def __init__(self, profile: Profile, facts: Facts, work: OwnWork | None) -> None:
        self._profile = profile
        self._facts = facts
        self._work = work

    def of(self, path: str) -> str:
        """Return what the setting comes to, as a sentence without its full stop."""
        found: Callable[[Consequences], str] = _SENTENCES[path]
        return found(self)

    def _devices(self) -> str:
        count = self._device_count()
        if count is None:
            return "As many cells compute at once as there are CUDA devices, two without any; others wait"
        return f"{counted(count, 'cell')} at once; one more waits until a device is free"

    def _memory(self) -> str:
        each = self._profile.pool.memory_bytes
        if each is None:
            return "The pool chooses it at its start, from the memory that is free then"
        parts = [f"A session and its running cell may use {format_bytes(each)}"]
        count = self._cpu_count()
        available = self._facts.memory_bytes
        if count and available is not None:
            left = available - count * each
            remains = f"{format_bytes(left)} remain" if left >= 0 else f"{format_bytes(-left)} are missing"
            total = format_bytes(count * each)
            parts.append(f"all devices take {total} of {format_bytes(available)}, {remains} for notebooks")
        effect = self._own_effect()
        if effect is not None:
            room = "which fits" if effect.peak_bytes <= each else "which does not fit: values are offloaded"
            parts.append(f"your last cells peak at {format_bytes(effect.peak_bytes)}, {room}")
        return "; ".join(parts)

    def _threads(self) -> str:
        threads, count = self._profile.pool.threads, self._cpu_count()
        if threads is None or count is None:
            return "The pool divides the cores among its devices"
        cores = self._facts.cores
        used = f"{count * threads} of {cores:g} cores are busy when every device computes"
        if count * threads > cores:
            return f"{used}: cells take longer while others run"
        return used

    def _host(self) -> str:
        size = self._profile.pool.host_bytes
        if size is None:
            return "The values of idle sessions are kept there while other sessions compute"
        if size == 0 and self._profile.pool.disk_bytes:
            return "Idle sessions go to disk, from where they return later than from memory"
        if size == 0:
            return "Idle sessions keep their device memory; cells of others wait for it"
        return self._parked(size, "in memory")

    def _disk(self) -> str:
        size = self._profile.pool.disk_bytes
        if size == 0:
            return "Where host memory is full, cells wait for memory"
        return self._parked(size, "on disk")

    def _parked(self, size: int, where: str) -> str:
        effect = self._own_effect()
        sentence = f"{format_bytes(size)} of idle sessions {where} for each device"
        if effect is None or not effect.peak_bytes:
            return sentence
        fitting = int(size // effect.peak_bytes)
        return f"{sentence}: {counted(fitting, 'session')} as large as your last cells at their peak"

    def _link(self) -> str:
        rate = self._profile.pool.link_bytes_per_s
        if rate == 0:
            return "An idle session returns as fast as memory copies, and slows running cells meanwhile"
        effect = self._own_effect()
        size = effect.peak_bytes if effect is not None and effect.peak_bytes else _EXAMPLE_BYTES
        whose = "your last cells" if size != _EXAMPLE_BYTES else "an idle session"
        return f"{format_bytes(size)} of {whose} return to a CPU device in {format_seconds(size / rate)}"

    def _estimator(self) -> str:
        name = self._profile.pool.cost_estimator
        if name == BUILT_IN_ESTIMATOR:
            return "Predicted starts and waits come from speeds that the pool measures"
        return f"Predicted starts and waits come from {name}, measured speeds where its answer is refused"

    def _priority(self) -> str:
        priority = self._profile.session.priority
        place = PRIORITIES.index(priority)
        before, after = PRIORITIES[:place], PRIORITIES[place + 1 :]
        waits = (
            f"wait for pending cells of priority {listed(before)}" if before else "wait for no other priority"
        )
        first = f"go before {listed(after)}" if after else "go before none"
        return f"Your cells {waits}, and {first}"

    def _progress(self) -> str:
        after_s = self._profile.session.progress_after_s
        if self._profile.session.quiet:
            return "No line appears, as quiet is true"
        sentence = f"A cell of {format_seconds(after_s)} or longer shows a line of progress"
        effect = self._own_effect()
        if self._work is None or effect is None:
            return sentence
        graphs = counted(self._work.graphs, "cell")
        return (
            f"{sentence}; your last {graphs} are predicted to take {format_seconds(effect.seconds)} together"
        )

    def _quiet(self) -> str:
        if self._profile.session.quiet:
            return "Nothing below a cell says how long it waited and ran"
        return "A line below a cell that takes longer says how long it waited and ran, and where"

    def _numbers(self) -> str:
        if self._profile.session.numbers == "bits":
            return "What runs again on a GPU after a loss has the same bits; some ops take longer there"
        return "On a GPU what runs again after a loss is close to what it was, not equal to the last bit"

    def _objective(self) -> str:
        effect = self._own_effect()
        if self._work is None or effect is None:
            where = {
                "latency": "where its first cell is predicted to be done first",
                "memory": "where the most memory is free",
                "energy": "where its first cell is predicted to use the fewest joules",
            }
            begins = where[self._profile.scheduler.objective]
            return f"A session begins {begins}; seconds are predicted once a pool knows cells of yours"
        if effect.refused:
            return f"Your last cells do not fit on {effect.device}: {effect.refused}"
        return (
            f"Your last {counted(self._work.graphs, 'cell')} take {format_seconds(effect.seconds)} on "
            f"{effect.device}, {format_bytes(effect.peak_bytes)} of {format_bytes(effect.memory_bytes)} at "
            "their peak"
        )

    def _reserve(self) -> str:
        share = self._profile.scheduler.memory_reserve_fraction
        size = self._device_bytes()
        if size is None:
            return f"{share:.0%} of a device's memory stays free where a session begins"
        free, left = format_bytes(share * size), format_bytes((1 - share) * size)
        return f"{free} of {format_bytes(size)} stay free where a session begins; {left} are for sessions"

    def _own_effect(self) -> PredictedEffect | None:
        return None if self._work is None else self._work.effect(self._profile.scheduler)

    def _cpu_count(self) -> int | None:
        devices = self._profile.pool.devices
        return int(devices.partition(":")[2]) if devices.startswith("cpu:") else None

    def _device_count(self) -> int | None:
        cuda = self._facts.cuda
        if self._profile.pool.devices in ("cuda", "auto") and cuda.status == "found":
            return len(cuda.devices)
        if self._profile.pool.devices == "auto" and cuda.status == "absent":
            return 2
        return self._cpu_count()

    def _device_bytes(self) -> int | None:
        if self._cpu_count():
            return self._profile.pool.memory_bytes
        return min((device.memory_bytes for device in self._facts.cuda.devices), default=None)


_SENTENCES: dict[str, Callable[[Consequences], str]] = {
    "pool.devices": Consequences._devices,
    "pool.memory_bytes": Consequences._memory,
    "pool.threads": Consequences._threads,
    "pool.host_bytes": Consequences._host,
    "pool.disk_bytes": Consequences._disk,
    "pool.link_bytes_per_s": Consequences._link,
    "pool.cost_estimator": Consequences._estimator,
    "session.priority": Consequences._priority,
    "session.progress_after_s": Consequences._progress,
    "session.quiet": Consequences._quiet,
    "session.numbers": Consequences._numbers,
    "scheduler.objective": Consequences._objective,
    "scheduler.memory_reserve_fraction": Consequences._reserve,
}
