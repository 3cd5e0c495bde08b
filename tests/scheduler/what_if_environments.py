"""Scripted environments: devices, their memory, a network, and a session's cells, or only their code.

A session is a row of graphs as such sessions have them: caches grow with each token, and training begins with
a small first cell. The wizard sees the first graphs, or the code. What settings are worth is what the whole
row then takes on the device at which they began the session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import NamedTuple

from programs import Script

from djinn_lab.config.detection import Cuda, CudaDevice, Facts, RunningPool
from djinn_lab.scheduler import DeviceProfile
from djinn_lab.srg.curves import DeviceCurves
from djinn_lab.srg.graph import SRG
from djinn_lab.srg.program import Phase, Scope

GIB = 2**30
SEEN = 4
"""So many graphs of a row had run when the wizard was asked."""
SIDE = 2048


def device(
    name: str,
    memory_gib: float,
    flops_per_s: float,
    used_gib: float = 0.0,
    client_bytes_per_s: float | None = None,
) -> DeviceProfile:
    kind = "cuda" if name.startswith("cuda") else "cpu"
    return DeviceProfile(
        name,
        kind,
        int(memory_gib * GIB),
        DeviceCurves.of_rates(flops_per_s, flops_per_s / 20, 5e-6),
        used_bytes=int(used_gib * GIB),
        transfer_bytes_per_s=client_bytes_per_s or 10e9,
        below_bytes=512 * GIB,
        link_bytes_per_s=16e9,
    )


class TwoGpus(NamedTuple):
    """``models``: of its GPUs. ``small_gib`` and ``large_gib``: their memory, where there is little or much.
    ``used``: the share of the first one's memory that others hold. ``speed``: in FLOP/s."""

    name: str
    models: tuple[str, str]
    small_gib: tuple[int, int]
    large_gib: tuple[int, int]
    speed: tuple[float, float]
    used: float = 0.0

    def devices(self, tight: bool, client_bytes_per_s: float | None) -> tuple[DeviceProfile, ...]:
        one, other = self.small_gib if tight else self.large_gib
        return (
            device("cuda:0", one, self.speed[0], one * self.used, client_bytes_per_s),
            device("cuda:1", other, self.speed[1]),
        )


MACHINES = (
    TwoGpus("a new small GPU and an older large one", ("4090", "A100"), (10, 24), (24, 80), (4e13, 3e13)),
    TwoGpus("a fast small GPU and a slow large one", ("4090", "A40"), (10, 24), (24, 80), (4e13, 1e13)),
    TwoGpus("two GPUs that differ in memory", ("A100 10GB", "A100 24GB"), (10, 24), (24, 80), (2e13, 2e13)),
    TwoGpus(
        "a new GPU in use and an old idle one", ("H100", "V100"), (16, 16), (48, 48), (6e13, 1e13), 1 / 3
    ),
)
NETWORKS = {"same host": None, "1 Gbit/s to the first device": 125e6}


class WorkloadSession(NamedTuple):
    """``code``: of its cells, as a user writes them."""

    name: str
    code: str
    graphs: Callable[[], list[SRG]]


def _bytes_shape(gib: float, columns: int = SIDE) -> tuple[int, int]:
    return max(1, int(gib * GIB) // (4 * columns)), columns


def _inference(cells: int = 12) -> list[SRG]:
    """A batch goes through 8.2 GiB of weights, in each cell."""
    return [_forward(0.05) for _ in range(cells)]


def _forward(uploaded_gib: float) -> SRG:
    script = Script(0, Scope("Net", 1, "cell", 3, "forward"))
    x = script.source((SIDE, SIDE), blob="0" * 64)
    script.source(_bytes_shape(uploaded_gib), blob="1" * 64)
    for _ in range(8):
        w = script.source((SIDE, _bytes_shape(8.2 / 8)[0]), "weight")
        made = script.op("aten.mm.default", x, w, shape=(SIDE, _bytes_shape(8.2 / 8)[0]))
        x = script.op("aten.slice.Tensor", made, shape=(SIDE, SIDE))
    return SRG.from_program(script.program(fetch=(x,)))


def _serving(cells: int = 12) -> list[SRG]:
    """Each cell generates text with 7.9 GiB of weights, and the cache of its tokens stays: 0.35 GiB more."""
    return [_tokens(0.1 + 0.35 * cell, "decode" if cell else "prefill") for cell in range(cells)]


def _tokens(cache_gib: float, phase: Phase) -> SRG:
    script = Script(0, Scope("Lm", 1, "cell", 3, phase))
    x = script.source((8, SIDE), blob="0" * 64)
    layers = [script.source((SIDE, _bytes_shape(7.9 / 8)[0]), "weight") for _ in range(8)]
    caches = [script.source(_bytes_shape(cache_gib / 8), "kv_cache") for _ in range(8)]
    for _ in range(3):
        for w, cache in zip(layers, caches, strict=True):
            made = script.op("aten.mm.default", x, w, shape=(8, _bytes_shape(7.9 / 8)[0]))
            read = script.op("aten.mm.default", x, cache, shape=(8, _bytes_shape(cache_gib / 8)[0]))
            x = script.op("aten.slice.Tensor", made, read, shape=(8, SIDE))
    return SRG.from_program(script.program(keep=tuple(caches), fetch=(x,)))


def _training(cells: int = 12) -> list[SRG]:
    """The first cell only tries the model; then each step keeps 13 GiB of activations for its backward."""
    return [_steps("forward", 0.1), *(_steps("backward", 13.0) for _ in range(cells - 1))]


def _steps(phase: Phase, activations_gib: float) -> SRG:
    script = Script(0, Scope("Net", 1, "cell", 3, phase))
    rows = _bytes_shape(activations_gib / 16)[0]
    made = [script.source((rows, SIDE), blob="0" * 64)]
    w = script.source((SIDE, SIDE), "weight")
    for _ in range(15):
        made.append(script.op("aten.mm.default", made[-1], w, shape=(rows, SIDE)))
    gradient = w
    for activation in reversed(made):
        gradient = script.op("aten.mm.default", activation, gradient, shape=(rows, SIDE))
        gradient = script.op("aten.slice.Tensor", gradient, shape=(SIDE, SIDE))
    return SRG.from_program(script.program(keep=(gradient,)))


SESSIONS = (
    WorkloadSession("inference", "with torch.no_grad():\n    y = net(x.cuda())", _inference),
    WorkloadSession("serving", "ids = model.generate(ids, max_new_tokens=64, use_cache=True)", _serving),
    WorkloadSession("training", "loss.backward()\noptimizer.step()", _training),
)


class ScriptedEnvironment(NamedTuple):
    """``code``: what the wizard sees, None where it sees graphs."""

    title: str
    models: tuple[str, str]
    devices: tuple[DeviceProfile, ...]
    session: WorkloadSession
    code: str | None

    @property
    def facts(self) -> Facts:
        """Return what a look at such a machine finds."""
        cuda = tuple(
            CudaDevice(model, one.memory_bytes, one.memory_bytes - one.used_bytes)
            for model, one in zip(self.models, self.devices, strict=True)
        )
        found = Cuda("found", cuda, f"{len(cuda)} CUDA devices")
        pool = RunningPool("found", "runs")
        return Facts(16, 64 * GIB, "available now", found, 8 * GIB, ("lightning", "transformers"), pool)


def environments() -> Iterator[ScriptedEnvironment]:
    for machine, tight, (network, client), session, seen in product(
        MACHINES, (False, True), NETWORKS.items(), SESSIONS, ("graphs", "code")
    ):
        code = session.code if seen == "code" else None
        memory = "little memory" if tight else "much memory"
        title = f"{machine.name}; {memory}; {network}; {session.name} by its {seen}"
        yield ScriptedEnvironment(title, machine.models, machine.devices(tight, client), session, code)
