"""What compiles regions: TorchInductor, or what an installed package offers (``djinn_lab.region_compilers``).

One process compiles a region and leaves a file; the workers that run on such devices load it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import torch

from djinn_lab.plugins import load_plugin
from djinn_lab.protocol.compiling import INDUCTOR, REGION_COMPILERS

if TYPE_CHECKING:
    from torch.fx import GraphModule

RunLibrary = Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]


@dataclass(frozen=True)
class TracedRegion:
    """A region to compile. ``graph``: of ATen ops; it takes the inputs and returns a tuple of tensors.
    ``inputs``: with the layouts that every run's have, and no memory. ``written``: the places of those that
    it writes. ``device``: ``"cpu"`` or ``"cuda"``; ``threads``: of a CPU, that a run has."""

    graph: GraphModule
    inputs: Sequence[torch.Tensor]
    written: Sequence[int]
    device: torch.device
    threads: int


class Compiler(Protocol):
    """Both methods may raise anything: the region then runs op by op, and reports say why."""

    def compile(self, region: TracedRegion, directory: Path) -> Path:
        """Compile, and return the file that holds all that :meth:`load` needs, in the directory."""
        ...

    def load(self, file: Path, device: torch.device) -> RunLibrary:
        """Return what computes the region: it gets inputs on the device, writes those that the region
        writes, and returns results in new memory."""
        ...


class Inductor:
    """TorchInductor, ahead of time: C++ for a CPU, Triton for a GPU."""

    def compile(self, region: TracedRegion, directory: Path) -> Path:
        import torch._inductor  # which takes seconds

        torch.set_num_threads(region.threads)
        with torch.no_grad():
            made = torch._inductor.aot_compile(region.graph, tuple(region.inputs), options=_OPTIONS)
        assert isinstance(made, str)
        return Path(made)

    def load(self, file: Path, device: torch.device) -> RunLibrary:
        runners: Any = torch._C._aoti
        if device.type == "cpu":
            runner = runners.AOTIModelContainerRunnerCpu(str(file), 1)
        else:
            runner = runners.AOTIModelContainerRunnerCuda(str(file), 1, str(device))

        def run(inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
            returned: list[torch.Tensor] = runner.run(list(inputs))
            return returned

        return run


_OPTIONS: dict[str, bool | int | str] = {
    "compile_threads": 1,
    "cpp.vec_isa_ok": True,  # it would compile and load a test each time
}


def find_compiler(name: str) -> Compiler:
    """Return a region compiler by its name. Raises OptionError."""
    if name == INDUCTOR:
        return Inductor()
    methods = ("compile(region, directory)", "load(file, device)")
    return cast(Compiler, load_plugin(REGION_COMPILERS, "region compiler", name, methods).made)
