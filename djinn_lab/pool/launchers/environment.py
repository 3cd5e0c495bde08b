"""The environment of processes that compute for the pool."""

from __future__ import annotations

from collections.abc import Mapping

from djinn_lab.pool.devices.cuda_cards import ORDER

PASSED = ("PATH", "HOME", "LANG", "TZ", "TMPDIR", "VIRTUAL_ENV", "GLIBC_TUNABLES", "DJINN_LAB_NATIVE")
PASSED_PREFIXES = (
    *("LC_", "LD_", "PYTHON", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "DNNL_", "ONEDNN_", "ATEN_"),
    *("TORCH_", "PYTORCH_", "CUDA_", "CUBLAS_", "CUDNN_", "NVIDIA_", "MALLOC_", "COVERAGE_"),
)
FOR_CUDA = ORDER | {
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
}
"""Memory that was freed serves tensors of other sizes; and cuBLAS computes the same bits each time."""


def scrubbed(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that workers need: no token, no database's address, nothing of the user's."""
    kept = {
        name: value
        for name, value in environment.items()
        if name in PASSED or name.startswith(PASSED_PREFIXES)
    }
    # One thread, so that a fork is safe; and no CUDA context, which no fork survives.
    one = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    return FOR_CUDA | kept | one | {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
