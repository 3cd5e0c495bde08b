"""What programs for GPUs write, on a machine without one and on one that has its own: the values are those of
a program for the CPU."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from equality import difference
from in_process import cell
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from djinn_lab.capture.lazy import is_lazy
from djinn_lab.capture.recorders import Recorder
from djinn_lab.capture.torch_functions.pool_devices import PoolDevice
from djinn_lab.errors import CaptureError

LEGACY: Any = torch.cuda


@pytest.fixture(autouse=True, params=[False, True], ids=["no GPU here", "a GPU here"])
def own_gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """A GPU of the notebook's machine is of no concern to a cell. Here it is one that torch only claims to
    have: whatever reaches it raises."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: request.param)
    return bool(request.param)


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


def ranges(x: torch.Tensor) -> torch.Tensor:
    torch.cuda.nvtx.range_push("a")
    torch.cuda.nvtx.mark("b")
    with torch.cuda.nvtx.range("c"), torch.autograd.profiler.emit_nvtx():
        y = x * 2
    torch.cuda.nvtx.range_pop()
    return y


def made_in_scope(x: torch.Tensor) -> torch.Tensor:
    with torch.device("cuda"):
        layer = nn.Linear(4, 2)
    return layer(x)


def restored(map_location: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    def load(x: torch.Tensor) -> Any:
        file = io.BytesIO()
        torch.save({"x": x}, file)
        file.seek(0)
        return torch.load(file, map_location=map_location)["x"] * 2

    return load


IDIOMS: dict[str, tuple[Callable[[torch.Tensor], Any], Callable[[torch.Tensor], Any]]] = {
    "module.to(0)": (lambda x: nn.Linear(4, 2).to(0)(x.to(0)), lambda x: nn.Linear(4, 2)(x)),
    "ranges of NVTX": (ranges, lambda x: x * 2),
    "a layer made in a device scope": (made_in_scope, lambda x: nn.Linear(4, 2)(x)),
    "a device by its number": (lambda x: x.to(torch.device(0)) * 2, lambda x: x * 2),
    "made on a device by its number": (
        lambda x: torch.ones(3, device=torch.device(0)),
        lambda x: torch.ones(3),
    ),
    "map_location, a function": (restored(lambda storage, location: storage.cuda()), lambda x: x * 2),
    "map_location, a function of none": (restored(lambda storage, location: None), lambda x: x * 2),
    "map_location, a dict": (restored({"cpu": "cuda:0"}), lambda x: x * 2),
    "map_location, a name": (restored("cuda"), lambda x: x * 2),
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


def nested(x: torch.Tensor) -> list[torch.Tensor]:
    return [x[:1], x]


OTHER_MEMORY: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sparse": lambda x: torch.sparse.mm(x.to_sparse().cuda(), x.T.cuda()),
    "sparse, to": lambda x: x.to_sparse().to("cuda").to_dense(),
    "sparse of a captured one": lambda x: (x.cuda() * 2).to_sparse().cuda().to_dense(),
    "sparse rows": lambda x: x.to_sparse_csr().cuda() @ x.T.cuda(),
    "nested": lambda x: (torch.nested.nested_tensor(nested(x)).cuda() * 2).to_padded_tensor(0.0),
    "nested, made there": lambda x: torch.nested.nested_tensor(nested(x), device="cuda").to_padded_tensor(
        0.0
    ),
    "jagged": lambda x: (
        torch.nested.nested_tensor(nested(x), layout=torch.jagged).cuda() * 2
    ).to_padded_tensor(0.0),
}


@pytest.mark.native_recorder(reason="the recorder in Python refuses sparse and nested tensors")
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", OTHER_MEMORY)
def test_sparse_and_nested_tensors_go_to_cuda(
    name: str, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(2, 4)
    with cell(recorder):
        found = OTHER_MEMORY[name](x)
    with monkeypatch.context() as here:
        here.setattr(torch.Tensor, "cuda", lambda tensor: tensor)
        move, make = torch.Tensor.to, torch.nested.nested_tensor
        here.setattr(torch.Tensor, "to", lambda x, *to, **by: x if to == ("cuda",) else move(x, *to, **by))
        here.setattr(torch.nested, "nested_tensor", lambda parts, device="", **named: make(parts, **named))
        expected = OTHER_MEMORY[name](x)
    assert torch.equal(found.cpu(), expected)


@pytest.mark.parametrize(
    "use",
    [
        lambda: torch.cuda.CUDAGraph(),
        lambda: torch.cuda.graph(None),
        lambda: torch.cuda.make_graphed_callables(nn.Linear(2, 2), (torch.ones(1, 2),)),
        lambda: torch.cuda.graph_pool_handle(),
    ],
)
def test_cuda_graphs_are_refused_with_what_to_do_instead(
    use: Callable[[], object], recorder: Recorder
) -> None:
    with cell(recorder):
        with pytest.raises(CaptureError, match=r"as it is, without torch\.cuda\.graph"):
            use()
        assert not torch.cuda.is_current_stream_capturing()


def test_a_device_in_a_cell_is_torchs_own(recorder: Recorder) -> None:
    before = torch.device
    with cell(recorder):
        made = [torch.device("cpu"), torch.device("cuda", 0), torch.device(0), torch.device(device="cpu")]
        assert all(isinstance(one, torch.device) and type(one) is before for one in made)
        assert type(made[0]) == torch.device  # noqa: E721 - as programs write it
        assert pickle.loads(pickle.dumps(made)) == copy.deepcopy(made) == made
        assert not isinstance("cpu", torch.device)
    assert torch.device is before


@pytest.mark.native_recorder(reason="torch.compile traces the recorder in Python")
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_flex_attention_equals_eager(recorder: Recorder) -> None:
    def attend(x: torch.Tensor) -> list[Any]:
        causal = create_block_mask(lambda b, h, i, j: i >= j, None, None, 8, 8, device="cpu")
        return [
            flex_attention(x, x, x),
            flex_attention(x, x, x, block_mask=causal),
            flex_attention(x, x, x, score_mod=lambda score, b, h, i, j: score + (i - j)),
        ]

    x = torch.randn(1, 2, 8, 4)
    expected = attend(x)
    with cell(recorder):
        found = attend(x)
    assert all(torch.equal(one.cpu(), other) for one, other in zip(found, expected, strict=True))
