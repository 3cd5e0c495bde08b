"""OpenVINO as a region compiler, for CPU devices."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import openvino
import torch

from djinn_lab.worker.compiled.compilers import RunLibrary, TracedRegion

_DEVICE = "CPU"


class OpenVINO:
    def compile(self, region: TracedRegion, directory: Path) -> Path:
        if region.device.type != "cpu":
            raise ValueError("this compiler is for CPU devices")
        if region.written:
            raise ValueError("OpenVINO writes no inputs")
        model = openvino.convert_model(torch.export.export(region.graph, _with_memory(region.inputs)))
        settings = {
            "INFERENCE_NUM_THREADS": region.threads,
            "INFERENCE_PRECISION_HINT": "f32",
            "PERFORMANCE_HINT": "LATENCY",
        }
        made = directory / "region.blob"
        made.write_bytes(openvino.Core().compile_model(model, _DEVICE, settings).export_model().getvalue())
        return made

    def load(self, file: Path, device: torch.device) -> RunLibrary:
        model = openvino.Core().import_model(io.BytesIO(file.read_bytes()), _DEVICE)
        request = model.create_infer_request()

        def run(inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
            request.infer([one.detach().numpy() for one in inputs], share_inputs=True)
            return [torch.from_numpy(one.data.copy()) for one in request.output_tensors]

        return run


def _with_memory(inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Return tensors of these layouts; torch exports with none that have no memory."""
    return tuple(torch.empty_strided(one.shape, one.stride(), dtype=one.dtype) for one in inputs)
