"""What torch answers about CUDA while a cell is captured.

``cuda`` means the pool and lazy tensors claim to be on the CPU, so what a device *type* switches on (loss
scaling, generators) is switched on for the CPU instead. Autocast is switched on for a type that no device
has here, with CUDA's rules. Calls that only a local GPU could answer get the harmless answer, or are refused
where there is none.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial, wraps
from time import perf_counter
from typing import Any, NoReturn, Protocol

import torch
from torch.serialization import default_restore_location
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _disable_current_modes

from djinn_lab.capture.sending.segment import paused
from djinn_lab.capture.torch_functions.accelerator_forms import ACCELERATOR_FORMS
from djinn_lab.capture.torch_functions.attention_forms import ATTENTION_FORMS
from djinn_lab.capture.torch_functions.pool_devices import (
    CUDA_RULES,
    PoolDeviceProperties,
    PoolDeviceScope,
    is_pool,
    unknown,
)
from djinn_lab.capture.torch_functions.pool_memory import Asks, memory_answers
from djinn_lab.capture.torch_functions.recurrent_forms import RECURRENT_FORMS
from djinn_lab.capture.torch_functions.replaced import Wanted
from djinn_lab.errors import CaptureError

_AUTOCAST: Any = torch.amp.autocast_mode.autocast
_SCALER: Any = torch.amp.GradScaler
_GENERATOR: Any = torch._C.Generator


class _GeneratorType(type(_GENERATOR)):  # type: ignore[misc]
    def __instancecheck__(cls, instance: object) -> bool:
        return type(instance) is _GENERATOR

    def __call__(cls, device: object = "cpu") -> torch.Generator:
        return _GENERATOR("cpu" if is_pool(device) else device)  # type: ignore[no-any-return]


class PoolGenerator(_GENERATOR, metaclass=_GeneratorType):  # type: ignore[misc]
    """Stands in for :class:`torch.Generator`: one for ``cuda`` draws in the notebook, as they all do."""


_DEVICE: Any = torch.device


class _DeviceType(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return type(instance) is _DEVICE

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is _DEVICE

    def __hash__(cls) -> int:
        return hash(_DEVICE)

    def __call__(cls, *args: Any, **named: Any) -> torch.device:
        if len(args) == 1 and not named and type(args[0]) is int:
            args = ("cuda", args[0]) if is_pool(args[0]) else args
        return _DEVICE(*args, **named)  # type: ignore[no-any-return]


class PoolNamedDevice(metaclass=_DeviceType):
    """Stands in for :class:`torch.device`, of which nothing can be derived: a bare number, which means the
    machine's accelerator, is a device of the pool."""


PoolNamedDevice.__module__ = "torch"
PoolNamedDevice.__qualname__ = PoolNamedDevice.__name__ = "device"


def _autocast_init(original: Callable[..., None]) -> Callable[..., None]:
    @wraps(original)
    def init(
        self: Any, device_type: str, dtype: torch.dtype | None = None, *rest: object, **named: object
    ) -> None:
        if is_pool(device_type):
            original(self, CUDA_RULES, torch.float16, *rest, **named)  # CUDA's takes any dtype
            self.fast_dtype = torch.get_autocast_dtype(CUDA_RULES) if dtype is None else dtype
        else:
            original(self, device_type, dtype, *rest, **named)

    return init


def _scaler_init(original: Callable[..., None]) -> Callable[..., None]:
    @wraps(original)
    def init(self: object, device: str = "cuda", *rest: object, **named: object) -> None:
        original(self, "cpu" if is_pool(device) else device, *rest, **named)

    return init


def _by_rules(original: Callable[..., object]) -> Callable[..., object]:
    """For what torch asks and sets for a device type, which is ``cuda`` when it is left out."""

    @wraps(original)
    def call(device_type: object = "cuda", *rest: object, **named: object) -> object:
        if not isinstance(device_type, str):
            device_type, rest = "cuda", (device_type, *rest)
        return original(CUDA_RULES if is_pool(device_type) else device_type, *rest, **named)

    return call


def _restoring(map_location: Any) -> Callable[[torch.UntypedStorage, str], object]:
    """Return the function that ``map_location`` stands for. What is for the pool stays here."""

    def restore(storage: torch.UntypedStorage, location: str) -> object:
        found = map_location(storage, location) if callable(map_location) else None
        if found is not None:
            return found
        target = map_location.get(location, location) if isinstance(map_location, dict) else location
        return storage if is_pool(target) else default_restore_location(storage, target)

    return restore


def _load(original: Callable[..., object]) -> Callable[..., object]:
    @wraps(original)
    def load(file: object, map_location: Any = None, *rest: object, **named: object) -> object:
        if isinstance(map_location, (str, torch.device)):
            map_location = "cpu" if is_pool(map_location) else map_location
        else:
            map_location = _restoring(map_location)
        with _disable_current_modes(), torch._C.DisableTorchFunction():  # bytes to tensors, nothing to record
            return original(file, map_location, *rest, **named)

    return load


def _set_default_device(original: Callable[[Any], None]) -> Callable[[object], None]:
    return lambda device: original(None if is_pool(device) else device)


def _in_device_scope(original: Callable[..., object]) -> Callable[..., object]:
    """Of ``with torch.device(...)``: where it names the pool, a cell's tensors are made there anyway."""

    def __torch_function__(
        scope: DeviceContext, func: Callable[..., object], types: object, args: Any = (), kwargs: Any = None
    ) -> object:
        if is_pool(scope.device):
            return func(*args, **(kwargs or {}))
        return original(scope, func, types, args, kwargs)

    return __torch_function__


def _do_nothing(*args: object, **kwargs: object) -> None:
    pass


def _stream() -> Any:
    """Return the default generator, or what stands in for it in a cell."""
    return vars(torch.random)["default_generator"]


def _itself(tensor: torch.Tensor, device: object = None) -> torch.Tensor:
    """``pin_memory()``: what a copy to a GPU needs, and the way to the pool does not."""
    return tensor


def _parse_to(original: Callable[..., object]) -> Callable[..., object]:
    """Of ``module.to``: a bare number is a device of the pool."""

    @wraps(original)
    def parse(*args: object, **kwargs: object) -> object:
        if args and isinstance(args[0], int) and is_pool(args[0]):
            args = (torch.device("cuda", args[0]), *args[1:])
        return original(*args, **kwargs)

    return parse


def _named_type(original: Callable[..., object]) -> Callable[..., object]:
    """For functions that take the name of a legacy type, as ``"torch.cuda.FloatTensor"``."""

    def here(item: object) -> object:
        return item.replace("torch.cuda.", "torch.") if isinstance(item, str) else item

    @wraps(original)
    def call(*args: object, **kwargs: object) -> object:
        return original(*map(here, args), **kwargs)

    return call


_ALWAYS: tuple[tuple[Any, str, Any], ...] = (
    (_AUTOCAST, "__init__", _autocast_init(_AUTOCAST.__init__)),
    (_SCALER, "__init__", _scaler_init(_SCALER.__init__)),
    (torch, "load", _load(torch.load)),
    (torch, "Generator", PoolGenerator),
    (torch, "is_autocast_enabled", _by_rules(torch.is_autocast_enabled)),
    (torch, "get_autocast_dtype", _by_rules(torch.get_autocast_dtype)),
    (torch, "set_autocast_enabled", _by_rules(torch.set_autocast_enabled)),
    (torch, "set_autocast_dtype", _by_rules(torch.set_autocast_dtype)),
    (torch, "get_autocast_gpu_dtype", partial(torch.get_autocast_dtype, CUDA_RULES)),
    (torch, "set_autocast_gpu_dtype", partial(torch.set_autocast_dtype, CUDA_RULES)),
    (torch.Tensor, "pin_memory", _itself),
)
_LEGACY_TYPES = (
    *("FloatTensor", "DoubleTensor", "HalfTensor", "BFloat16Tensor", "BoolTensor"),
    *("ByteTensor", "CharTensor", "ShortTensor", "IntTensor", "LongTensor"),
)
_SEEDS: dict[str, Callable[..., object]] = {
    **dict.fromkeys(
        ("manual_seed", "manual_seed_all"), lambda seed: _do_nothing(_stream().manual_seed(int(seed)))
    ),
    **dict.fromkeys(("seed", "seed_all"), lambda: _do_nothing(_stream().seed())),
    "initial_seed": lambda: _stream().initial_seed(),
    "get_rng_state": lambda device="cuda": _stream().get_state(),
    "get_rng_state_all": lambda: [_stream().get_state()],
    "set_rng_state": lambda state, device="cuda": _do_nothing(_stream().set_state(state)),
    "set_rng_state_all": lambda states: _do_nothing(*map(_stream().set_state, states)),
}
"""Notebook and pool draw from one stream, so that a seed for CUDA is a seed of that one."""
_OF_THE_POOL: tuple[tuple[Any, str, Any], ...] = (
    (torch, "set_default_device", _set_default_device(torch.set_default_device)),
    (DeviceContext, "__torch_function__", _in_device_scope(DeviceContext.__torch_function__)),
    (torch.cuda, "synchronize", lambda device=None: None),
    (torch.cuda, "current_device", lambda: 0),
    (torch.cuda, "set_device", lambda device: PoolDeviceScope(device) and None),
    (torch.cuda, "device", PoolDeviceScope),
    (torch.cuda, "device_of", lambda tensor: PoolDeviceScope("cuda")),
    (torch.cuda, "get_device_properties", PoolDeviceProperties),
    (torch.Tensor, "record_stream", lambda tensor, stream: None),
    (torch.Tensor, "type", _named_type(torch.Tensor.type)),
    (torch, "set_default_tensor_type", _named_type(torch.set_default_tensor_type)),
    (torch._C._nn, "_parse_to", _parse_to(torch._C._nn._parse_to)),
    *((torch.cuda, name, getattr(torch, name)) for name in _LEGACY_TYPES),
    *((torch.cuda, name, answer) for name, answer in _SEEDS.items()),
    (torch.cuda, "get_device_name", lambda device=None: "Djinn Lab pool"),
    (torch, "device", PoolNamedDevice),
    (torch.UntypedStorage, "cuda", lambda storage, device=None, non_blocking=False: storage),
    (torch.cuda, "is_current_stream_capturing", lambda: False),
)


class _NoRanges:
    """Stands in for the library of NVTX, whose ranges only a profiler of a local GPU shows."""

    def __getattr__(self, name: str) -> Callable[..., int]:
        return lambda *args: 0


_PROFILING: tuple[tuple[Any, str, Any], ...] = (
    (torch.cuda.nvtx, "_nvtx", _NoRanges()),
    (torch.autograd.profiler, "emit_nvtx", lambda enabled=True, record_shapes=False: nullcontext()),
)


def _refuse_graphs(*args: object, **kwargs: object) -> NoReturn:
    raise CaptureError(
        "CUDA graphs cannot be made in a cell: which device it will run on is for the pool to choose, and "
        "the cell is sent as a graph anyway.",
        "Call the model as it is, without torch.cuda.graph and CUDAGraph. Session.capture(tolerance=1e-5) "
        "lets the pool compile what runs often.",
    )


class PoolGraph:
    """Stands in for :class:`torch.cuda.CUDAGraph`, which the pool has not."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        _refuse_graphs()


_GRAPHS: tuple[tuple[Any, str, Any], ...] = (
    *((torch.cuda, name, PoolGraph) for name in ("CUDAGraph", "graph")),
    *((torch.cuda, name, _refuse_graphs) for name in ("make_graphed_callables", "graph_pool_handle")),
)


class PoolStream:
    """Stands in for :class:`torch.cuda.Stream`: ops of a cell run in the order in which it records them."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        self.device = torch.device("cuda", 0)

    def __enter__(self) -> PoolStream:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def query(self) -> bool:
        return True

    def wait_stream(self, stream: object) -> None:
        pass

    def wait_event(self, event: object) -> None:
        pass

    def record_event(self, event: Any = None) -> Any:
        event = torch.cuda.Event() if event is None else event
        event.record(self)
        return event


class PoolEvent:
    """Stands in for :class:`torch.cuda.Event`. One with timing runs what is recorded so far: its time is when
    the pool had done that, the way there and back included."""

    run_pending: Callable[[str], None]

    def __init__(
        self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> None:
        self._times = enable_timing
        self._done_s: float | None = None

    def record(self, stream: object = None) -> None:
        if self._times:
            self.run_pending("a CUDA event was recorded")
        self._done_s = perf_counter()

    def wait(self, stream: object = None) -> None:
        pass

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end: PoolEvent) -> float:
        """Milliseconds, as torch has it."""
        if not (self._times and end._times):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self._done_s is None or end._done_s is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        return 1000 * (end._done_s - self._done_s)


def _stream_context(stream: object) -> AbstractContextManager[object]:
    return nullcontext(stream)


def _refusal(name: str) -> Callable[..., object]:
    return lambda *args, **kwargs: unknown(name)


_STREAMS: tuple[tuple[Any, str, Any], ...] = (
    (torch.cuda, "Stream", PoolStream),
    (torch.cuda, "stream", _stream_context),
    (torch.cuda, "current_stream", PoolStream),
    (torch.cuda, "default_stream", PoolStream),
)
_HOUSEKEEPING = (
    *("init", "ipc_collect", "set_per_process_memory_fraction"),
    *("reset_accumulated_memory_stats", "empty_cache"),
    *("reset_peak_host_memory_stats", "reset_accumulated_host_memory_stats"),
)
_UNKNOWN = (
    *("get_device_capability", "memory_snapshot"),
    *("memory_usage", "device_memory_used"),
    *("utilization", "temperature", "power_draw", "clock_rate"),
)
_OF_ONE_DEVICE: tuple[tuple[Any, str, Any], ...] = tuple(
    (torch.cuda, name, answer)
    for name, answer in (
        *((name, _do_nothing) for name in _HOUSEKEEPING),
        *((name, _refusal(name)) for name in _UNKNOWN),
    )
    if hasattr(torch.cuda, name)
)


def cuda_answers(recorder: Asks) -> list[Wanted]:
    """Return what makes torch's answers about CUDA speak of the pool, also where the notebook's machine has a
    GPU of its own."""
    event = type("PoolEvent", (PoolEvent,), {"run_pending": staticmethod(recorder.finish)})
    wanted = (
        *_ALWAYS,
        *_OF_THE_POOL,
        *_STREAMS,
        *_OF_ONE_DEVICE,
        *_PROFILING,
        *_GRAPHS,
        (torch.cuda, "Event", event),
        *((torch.cuda, name, answer) for name, answer in memory_answers(recorder).items()),
    )
    instead = ((owner, name, partial(_instead, new)) for owner, name, new in wanted)
    return [*instead, *ACCELERATOR_FORMS, *ATTENTION_FORMS, *RECURRENT_FORMS]


def _instead(new: object, original: object) -> object:
    return new


class Adopts(Protocol):
    def adopt_copy(self, tensor: torch.Tensor) -> torch.Tensor: ...


class ToPool(torch.autograd.Function):
    """A copy on the pool; the gradient flows back unchanged."""

    @staticmethod
    def forward(ctx: object, tensor: torch.Tensor, recorder: Adopts) -> torch.Tensor:
        return recorder.adopt_copy(tensor)

    @staticmethod
    def backward(ctx: object, *gradients: object) -> object:
        return gradients[0], None


class FetchToHost(torch.autograd.Function):
    """``.cpu()`` of a lazy tensor; the gradient goes back to the pool when backward reaches it. ``fetch``:
    get its values in host memory, not to be written to."""

    @staticmethod
    def forward(
        ctx: object, lazy: torch.Tensor, fetch: Callable[[torch.Tensor, str], torch.Tensor]
    ) -> torch.Tensor:
        fetched = fetch(lazy, "cpu")
        with paused():
            return fetched.clone()  # here, also inside a captured cell

    @staticmethod
    def backward(ctx: object, *gradients: object) -> object:
        return gradients[0], None
