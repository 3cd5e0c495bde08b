"""TensorRT as a region compiler, for GPUs. Written from TensorRT's documentation; it has not run yet."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch

from djinn_lab.worker.compiled.compilers import RunLibrary, TracedRegion


class TensorRT:
    def compile(self, region: TracedRegion, directory: Path) -> Path:
        """The file has the names of the inputs and the dtypes of the results in its first line, as JSON, and
        the engine behind it."""
        if region.device.type != "cuda":
            raise ValueError("this compiler is for GPUs")
        if region.written:
            raise ValueError("TensorRT writes no inputs")
        from torch_tensorrt.dynamo import convert_exported_program_to_serialized_trt_engine

        inputs = tuple(
            torch.empty_strided(one.shape, one.stride(), dtype=one.dtype, device="cuda")
            for one in region.inputs
        )
        exported = torch.export.export(region.graph, inputs)
        engine = convert_exported_program_to_serialized_trt_engine(
            exported, arg_inputs=inputs, disable_tf32=True, require_full_compilation=True
        )
        [results] = region.graph.graph.output_node().args
        head = {
            "inputs": list(exported.graph_signature.user_inputs),
            "results": [str(result.meta["val"].dtype).removeprefix("torch.") for result in results],
        }
        made = directory / "region.engine"
        made.write_bytes(json.dumps(head).encode() + b"\n" + engine)
        return made

    def load(self, file: Path, device: torch.device) -> RunLibrary:
        import tensorrt

        line, _, content = file.read_bytes().partition(b"\n")
        head = json.loads(line)
        runtime = tensorrt.Runtime(tensorrt.Logger(tensorrt.Logger.ERROR))
        engine = runtime.deserialize_cuda_engine(content)
        if engine is None:
            raise ValueError("TensorRT cannot read the engine")
        context = engine.create_execution_context()
        names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
        made_names = [name for name in names if engine.get_tensor_mode(name) == tensorrt.TensorIOMode.OUTPUT]
        shapes = [tuple(engine.get_tensor_shape(name)) for name in made_names]
        dtypes = [getattr(torch, name) for name in head["results"]]

        def run(inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
            given = dict(zip(head["inputs"], (one.contiguous() for one in inputs), strict=True))
            made = [
                torch.empty(shape, dtype=dtype, device=device)
                for shape, dtype in zip(shapes, dtypes, strict=True)
            ]
            for name, tensor in (*given.items(), *zip(made_names, made, strict=True)):
                if name in names:  # the engine leaves out what it does not read
                    context.set_tensor_address(name, tensor.data_ptr())
            if not context.execute_async_v3(torch.cuda.current_stream(device).cuda_stream):
                raise RuntimeError("TensorRT did not start the engine")
            return made

        return run
