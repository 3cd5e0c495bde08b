"""What programs for GPUs write, on a machine without one: the values are those of a program for the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from equality import difference
from in_process import cell
from torch import nn

from djinn_lab.capture.lazy import is_lazy
from djinn_lab.capture.recorders import Recorder
from djinn_lab.capture.torch_functions.pool_devices import PoolDevice
from djinn_lab.errors import CaptureError

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="torch answers for its own device")
LEGACY: Any = torch.cuda


def in_scope(x: torch.Tensor) -> torch.Tensor:
    with torch.cuda.device(0), torch.cuda.device_of(x):
        return torch.randn(3, device="cuda")


def seeded(x: torch.Tensor) -> list[torch.Tensor]:
    torch.cuda.manual_seed_all(5)
    state = torch.cuda.get_rng_state()
    first = torch.randn(2, device="cuda")
    torch.cuda.set_rng_state_all([state])
    return [first, torch.randn(2, device="cuda:0")]


def seeded_here(x: torch.Tensor) -> list[torch.Tensor]:
    return [torch.randn(2, generator=torch.Generator().manual_seed(5)) for _ in range(2)]


def recorded_stream(x: torch.Tensor) -> torch.Tensor:
    y = x.cuda() * 2
    y.record_stream(torch.cuda.current_stream())
    return y


IDIOMS: dict[str, tuple[Callable[[torch.Tensor], Any], Callable[[torch.Tensor], Any]]] = {
    "module.to(0)": (lambda x: nn.Linear(4, 2).to(0)(x.to(0)), lambda x: nn.Linear(4, 2)(x)),
    "a device scope": (in_scope, lambda x: torch.randn(3)),
    "pin_memory": (lambda x: x.pin_memory().to("cuda", non_blocking=True) * 2, lambda x: x * 2),
    "pinned when made": (lambda x: torch.ones(3, pin_memory=True).cuda() + 1, lambda x: torch.ones(3) + 1),
    "record_stream": (recorded_stream, lambda x: x * 2),
    "a legacy type": (lambda x: x.cuda().type(LEGACY.DoubleTensor) * 1, lambda x: x.double() * 1),
    "its name": (lambda x: x.type("torch.cuda.HalfTensor") * 1, lambda x: x.half() * 1),
    "made by it": (lambda x: LEGACY.FloatTensor([1, 2]) * 3, lambda x: torch.tensor([3.0, 6.0])),
    "seeds": (seeded, seeded_here),
}


@pytest.mark.parametrize("name", IDIOMS)
def test_an_idiom_of_cuda_gives_the_values_of_the_cpu(name: str, recorder: Recorder) -> None:
    for_cuda, for_cpu = IDIOMS[name]
    x = torch.randn(2, 4)
    torch.manual_seed(1)
    expected = for_cpu(x)
    torch.manual_seed(1)
    with cell(recorder):
        found = for_cuda(x)
    assert difference(found, expected) is None


@pytest.mark.parametrize(
    "use",
    [
        lambda x: x.to("cuda:7"),
        lambda x: x.cuda(7),
        lambda x: x.to(7),
        lambda x: torch.ones(2, device="cuda:7"),
        lambda x: nn.Linear(2, 2).to(7),
        lambda x: torch.cuda.set_device(7),
        lambda x: torch.cuda.device(torch.device("cuda", 7)),
    ],
)
def test_a_device_beyond_those_of_the_pool_is_refused(
    use: Callable[[torch.Tensor], Any], recorder: Recorder
) -> None:
    recorder.devices = lambda: [PoolDevice("cpu:0", "in process", 2**33)]
    with cell(recorder):
        with pytest.raises(CaptureError, match=r"cuda:7 does not exist: the pool has cuda:0 \(cpu:0\)"):
            use(torch.ones(2))
        assert is_lazy(torch.ones(2, device="cuda:0"))


def test_the_memory_of_the_pools_device_is_told(recorder: Recorder) -> None:
    with cell(recorder), pytest.raises(CaptureError, match="%djinn status"):
        torch.cuda.get_device_properties(0)
    recorder.devices = lambda: [PoolDevice("cpu:0", "in process", 2**33)]
    with cell(recorder):
        properties = torch.cuda.get_device_properties(0)
        assert properties.total_memory == 2**33
        assert "cpu:0" in properties.name
        assert not hasattr(properties, "major")
