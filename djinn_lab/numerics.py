"""The numeric settings of this process's torch: recorders read them, and workers run programs under them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.utils.deterministic
from msgspec.structs import replace

from djinn_lab.srg.program import NumericSettings

_C: Any = torch._C
_deterministic: Any = torch.utils.deterministic
_matmul: Any = torch.backends.cuda.matmul
_DEFAULTS = NumericSettings()
_SMALLEST = 5e-324
_VECTOR_FUNCTIONS = (
    "acos", "asin", "atan", "cos", "erf", "erfc", "erfinv", "exp", "expm1", "log", "log10", "log1p", "log2",
    "rsqrt", "sin", "sqrt", "tan", "tanh", "trunc",
)  # fmt: skip


def settle_kernels() -> None:
    """Call, in this thread alone, the kernels that choose their code when they are called first. When several
    threads call one first, oneMKL's vector functions compute the share of one thread to half the digits
    (https://github.com/pytorch/pytorch/issues/188792)."""
    own = torch.Generator()  # a notebook's random numbers stay what they were
    with torch.inference_mode():
        for dtype in (torch.float32, torch.float64):
            one = torch.full((1,), 0.5, dtype=dtype)
            for name in _VECTOR_FUNCTIONS:
                getattr(one, name)()
            one.bernoulli_(0.5, generator=own)
            one.exponential_(generator=own)
        image, matrix = torch.ones(1, 1, 8, 8), torch.eye(8)
        torch.conv2d(image, torch.ones(1, 1, 3, 3))
        torch.nn.functional.scaled_dot_product_attention(image, image, image)
        for dtype in (torch.float32, torch.bfloat16, torch.float64):
            torch.mm(matrix.to(dtype), matrix.to(dtype))
        torch.linalg.svd(matrix)
        torch.fft.fft(matrix)


@contextmanager
def applied(settings: NumericSettings | None, device: torch.device) -> Iterator[None]:
    """Apply ``settings`` (None: torch's defaults) to this process inside, and what was set before
    afterwards. On an accelerator a session may want deterministic algorithms wherever torch has them: what is
    run again after a loss then has the same bits."""
    accelerator = device.type != "cpu"
    wanted, before = settings or _DEFAULTS, present(accelerator)
    if wanted.replayable and not wanted.deterministic and accelerator:
        wanted = replace(wanted, deterministic=True, warn_only=True, fill_uninitialized=False)
    wanted = replace(wanted, replayable=False)
    if wanted == before:
        yield
        return
    _apply(wanted, before)
    try:
        yield
    finally:
        _apply(before, wanted)


def present(accelerator: bool) -> NumericSettings:
    """Return what is set; ``accelerator``: also what concerns these alone."""
    own = NumericSettings(
        str(torch.get_default_dtype()).removeprefix("torch."),
        _C._get_mkldnn_enabled(),
        *deterministic(),
        _SMALLEST * 1.0 == 0.0,  # torch does not say; the processor flushes Python's numbers as well
        _matmul_precision(),
    )
    return replace(own, **{name: get() for name, (get, _) in _SWITCHES.items()}) if accelerator else own


_SWITCHES: Mapping[str, tuple[Callable[[], bool], Callable[[bool], None]]] = {
    "cudnn": (_C._get_cudnn_enabled, _C._set_cudnn_enabled),
    "cudnn_tf32": (
        lambda: _C._get_fp32_precision_getter("cuda", "conv") == "tf32",
        _C._set_cudnn_allow_tf32,
    ),
    "cudnn_benchmark": (_C._get_cudnn_benchmark, _C._set_cudnn_benchmark),
    "cudnn_deterministic": (_C._get_cudnn_deterministic, _C._set_cudnn_deterministic),
    "reduce_float16": (
        lambda: bool(_matmul.allow_fp16_reduced_precision_reduction),
        lambda on: setattr(_matmul, "allow_fp16_reduced_precision_reduction", on),
    ),
    "reduce_bfloat16": (
        lambda: bool(_matmul.allow_bf16_reduced_precision_reduction),
        lambda on: setattr(_matmul, "allow_bf16_reduced_precision_reduction", on),
    ),
    "accumulate_float16": (
        _C._get_cublas_allow_fp16_accumulation,
        _C._set_cublas_allow_fp16_accumulation,
    ),
    "flash_attention": (_C._get_flash_sdp_enabled, _C._set_sdp_use_flash),
    "mem_efficient_attention": (_C._get_mem_efficient_sdp_enabled, _C._set_sdp_use_mem_efficient),
    "math_attention": (_C._get_math_sdp_enabled, _C._set_sdp_use_math),
    "cudnn_attention": (_C._get_cudnn_sdp_enabled, _C._set_sdp_use_cudnn),
}
"""What concerns accelerators alone, by its name in the settings: how it is read and set."""


def _matmul_precision() -> str:
    """Return what torch.get_float32_matmul_precision does, which raises once ``fp32_precision`` was set."""
    if _C._get_fp32_precision_getter("cuda", "matmul") != "tf32":
        return "highest"
    return "medium" if _C._get_fp32_precision_getter("mkldnn", "matmul") == "bf16" else "high"


def _apply(settings: NumericSettings, before: NumericSettings) -> None:
    torch.set_default_dtype(getattr(torch, settings.default_dtype))
    _C._set_mkldnn_enabled(settings.mkldnn)
    set_deterministic(settings.deterministic, settings.warn_only, settings.fill_uninitialized)
    torch.set_flush_denormal(settings.flush_denormal)
    torch.set_float32_matmul_precision(settings.matmul_precision)
    for name, (_, switch) in _SWITCHES.items():
        if getattr(settings, name) != getattr(before, name):
            switch(getattr(settings, name))


def deterministic() -> tuple[bool, bool, bool]:
    """Return what :func:`set_deterministic` takes, as it is set."""
    on, warn_only = _C._get_deterministic_algorithms(), _C._get_deterministic_algorithms_warn_only()
    return on, warn_only, _deterministic.fill_uninitialized_memory


def set_deterministic(on: bool, warn_only: bool, fill: bool) -> None:
    """Do as torch.use_deterministic_algorithms, which would import torch's compiler to notify that, and take
    seconds. ``fill``: whether new memory is filled while that is on."""
    _C._set_deterministic_algorithms(on, warn_only=warn_only)
    _deterministic.fill_uninitialized_memory = fill
