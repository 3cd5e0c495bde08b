"""Features that public code uses, captured and eager: equal to the last bit, or the same exception."""

from __future__ import annotations

import copy
import ctypes
import io
import os
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from equality import check_cell
from in_process import InProcessBackend, cell
from torch import nn
from torch.utils import dlpack

from djinn_lab.capture.lazy import is_lazy
from djinn_lab.capture.recorders import Recorder, chosen
from djinn_lab.errors import CaptureError

native_only = pytest.mark.native_recorder(
    reason="the Python recorder's tensors are a subclass, which torch treats differently",
)


def _encoder() -> nn.TransformerEncoder:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2).eval()


ctypes.pythonapi.PyCapsule_GetPointer.restype = ctypes.c_void_p
ctypes.pythonapi.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_PADDING = torch.tensor([[False, False, False, True, True], [False] * 5])


def test_inference_mode_copies_are_no_aliases(recorder: Recorder) -> None:
    def body() -> list[torch.Tensor]:
        with torch.inference_mode():
            x = torch.arange(1.0, 5.0).view(2, 2) * 1
            y = x.t().contiguous()
            y.zero_()
            views = [x[0], *x.unbind(0), x.view(1, 1, 2, 2).permute(0, 2, 3, 1).contiguous()]
            return [x, y, x.t().reshape(4), x.to(torch.float64), x.t().flatten(), *views]

    check_cell(recorder, body)


@native_only
@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_lengths_that_torch_puts_into_a_tensor_itself_arrive(reduction: str, recorder: Recorder) -> None:
    def body(x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        log_probs = (x * 1).log_softmax(2)
        return nn.functional.ctc_loss(log_probs, targets, (7, 6), (3, 2), reduction=reduction)

    check_cell(recorder, body, torch.randn(7, 2, 5), torch.tensor([[1, 2, 3], [4, 1, 0]]))


@native_only
def test_what_compiled_code_writes_by_address_is_seen(recorder: Recorder) -> None:
    with cell(recorder):
        x = torch.ones(3) * 2
        capsule = torch._C._to_dlpack(x)
        record = ctypes.pythonapi.PyCapsule_GetPointer(ctypes.py_object(capsule), b"dltensor")
        address = ctypes.c_void_p.from_address(record).value
        ctypes.c_float.from_address(address).value = 7.0
        doubled = x * 2
    assert x.tolist() == [7, 2, 2]
    assert doubled.tolist() == [14, 4, 4]


@native_only
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_transformer_encoder_in_eval_mode_takes_the_fused_path(
    recorder: Recorder, mode: Callable[[], Any]
) -> None:
    def body(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
        with mode(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # nested tensors are a prototype
            return [model(x, src_key_padding_mask=_PADDING), model(x)]

    found = check_cell(recorder, body, _encoder(), torch.randn(2, 5, 8))
    assert not found[0][0, 3:].detach().cpu().any()  # padded positions are zero


@native_only
def test_attention_without_weights_returns_none_for_them(recorder: Recorder) -> None:
    def body(attention: nn.Module, x: torch.Tensor) -> Any:
        with torch.no_grad():
            return attention(x, x, x), attention(x, x, x, need_weights=False)

    check_cell(recorder, body, nn.MultiheadAttention(8, 2, batch_first=True).eval(), torch.randn(2, 5, 8))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_attention_in_half_precision_equals_eager_also_without_elements(
    dtype: torch.dtype, recorder: Recorder
) -> None:
    def body(*inputs: torch.Tensor) -> list[torch.Tensor]:
        query, weight = inputs
        joined = query.transpose(1, 2).flatten(2).transpose(0, 1)
        size, bias, flash = joined.shape[-1], weight[:, 0], torch.ops.aten
        with torch.no_grad():
            public = nn.functional.scaled_dot_product_attention(query, query, query)
            direct = [] if not len(query) else flash._scaled_dot_product_flash_attention_for_cpu(*3 * [query])
            heads = nn.functional.multi_head_attention_forward(
                *(joined, joined, joined, size, 2, weight, weight.new_zeros(3 * size)),
                *(None, None, False, 0.0),
                *(weight[:size], bias[:size]),
                training=False,
            )
        return [public, *direct[:1], *(item for item in heads if item is not None)]

    torch.manual_seed(0)
    for batch in (2, 0):
        check_cell(recorder, body, torch.randn(batch, 2, 4, 8).to(dtype), torch.randn(48, 16).to(dtype))


@native_only
def test_nested_and_sparse_tensors_meet_lazy_ones(recorder: Recorder) -> None:
    def body() -> list[torch.Tensor]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            nested = torch.nested.nested_tensor([torch.ones(1, 3) * 1, torch.randn(2, 3)])
            jagged = torch.nested.nested_tensor([torch.ones(1, 3), torch.randn(2, 3)], layout=torch.jagged)
            x = torch.randn(3, 3) * 1
            rows = x.to_sparse_csr()
            padded = [(item * 2).to_padded_tensor(0.0) for item in (nested, jagged)]
            return [*padded, x.to_sparse().to_dense(), torch.sparse.mm(x.to_sparse(), x), rows @ x]

    check_cell(recorder, body)


@native_only
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_attention_of_nested_tensors(layout: torch.layout, recorder: Recorder) -> None:
    def body(project: nn.Module) -> list[torch.Tensor]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            rows = [torch.randn(3, 8), torch.randn(5, 8)]
            x = project(torch.nested.nested_tensor(rows, layout=layout))
            if layout is torch.jagged:
                x = x.unsqueeze(2).transpose(1, 2)
            attended = nn.functional.scaled_dot_product_attention(x, x, x)
            if layout is torch.jagged:
                attended = attended.transpose(1, 2).squeeze(2)
            padded = torch.nested.to_padded_tensor(attended, 0.0)
        padded.sum().backward()
        return [padded]

    check_cell(recorder, body, nn.Linear(8, 8))


@native_only
@pytest.mark.parametrize("layer", [nn.Embedding, nn.EmbeddingBag])
def test_sparse_gradients_of_embeddings_add_up(layer: Any, recorder: Recorder) -> None:
    def body(table: nn.Module) -> list[torch.Tensor]:
        for _ in range(2):
            table(torch.tensor([[1, 2], [2, 3]])).square().sum().backward()
        gradient = table.weight.grad
        assert isinstance(gradient, torch.Tensor)
        assert gradient.is_sparse
        found = [gradient.coalesce().indices(), gradient.coalesce().values(), gradient.to_dense()]
        table.zero_grad()
        return found

    check_cell(
        recorder, body, layer(10, 4, sparse=True, **({"mode": "sum"} if layer is nn.EmbeddingBag else {}))
    )


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:Please use quant_min:UserWarning")
def test_quantisation_aware_training(recorder: Recorder) -> None:
    quantization: Any = torch.ao.quantization

    def body(network: nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
        losses = []
        for _ in range(3):
            optimizer.zero_grad()
            losses.append(network(torch.randn(5, 4)).square().mean())
            losses[-1].backward()
            optimizer.step()
        return losses

    network = quantization.QuantWrapper(nn.Sequential(nn.Linear(4, 3), nn.ReLU())).train()
    network.qconfig = quantization.get_default_qat_qconfig("fbgemm")
    quantization.prepare_qat(network, inplace=True)
    check_cell(recorder, body, network, torch.optim.SGD(network.parameters(), 0.1))


@native_only
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
def test_quantised_tensors_stay_here(recorder: Recorder) -> None:
    def body() -> list[torch.Tensor]:
        quantised = torch.quantize_per_tensor(torch.randn(3, 4) * 1, 0.1, 0, torch.quint8)
        return [torch.relu(quantised).dequantize(), (quantised.dequantize() * 2)]

    check_cell(recorder, body)


@native_only
def test_python_functions_over_elements_run_on_the_host(recorder: Recorder) -> None:
    def body() -> list[torch.Tensor]:
        x = torch.ones(3) * 2
        x.apply_(lambda value: value + 1)
        plain = torch.zeros(3)
        plain.map_(x, lambda one, other: one + other)
        z = torch.zeros(3) + 1
        z.map_(x, lambda one, other: one - other)
        return [x, x * 2, plain, plain * 2, z]

    check_cell(recorder, body)


@native_only
def test_dlpack_shares_memory_with_a_lazy_tensor(recorder: Recorder) -> None:
    to_dlpack: Any = vars(dlpack)["to_dlpack"]  # torch's own stubs do not export them
    from_dlpack: Any = vars(torch)["from_dlpack"]

    def body() -> list[Any]:
        x = torch.ones(3) * 2
        shared = from_dlpack(x)
        shared.add_(1)
        capsule = from_dlpack(to_dlpack(x))
        return [x, shared, str(shared), np.from_dlpack(x).copy(), x * 2, str(capsule)]

    check_cell(recorder, body)


def _parametrized(name: str) -> Any:
    return getattr(nn.utils.parametrizations, name)(nn.Linear(3, 3))


class _Marked(torch.Tensor):
    """A subclass that adds nothing."""


@native_only
def test_subclasses_of_tensor_keep_their_type(recorder: Recorder) -> None:
    def body() -> list[Any]:
        doubled = (torch.ones(2) * 3).as_subclass(_Marked) * 2
        added = doubled + torch.ones(2)
        made = torch.Tensor._make_subclass(_Marked, torch.ones(2) * 1)
        plain = [item.as_subclass(torch.Tensor) for item in (doubled, added, made * 2)]
        return [type(doubled).__name__, type(added).__name__, str(added), added.sum().item(), *plain]

    check_cell(recorder, body)


def test_saved_views_and_tied_weights_are_stored_once(recorder: Recorder) -> None:
    def body() -> list[Any]:
        table, out = nn.Embedding(100, 32), nn.Linear(32, 100, bias=False)
        out.weight = table.weight
        x = torch.zeros(1000) * 1
        file = io.BytesIO()
        torch.save([nn.ModuleList([table, out]).state_dict(), x[:10], x[10:20], x], file)
        size = len(file.getvalue()) // 1024
        file.seek(0)
        state = torch.load(file)[0]
        return [size, state["0.weight"].data_ptr() == state["1.weight"].data_ptr(), state]

    if chosen() == "python":
        pytest.skip("the Python recorder stores them twice")
    check_cell(recorder, body)


def test_pickled_and_copied_tensors_are_independent(recorder: Recorder) -> None:
    def body() -> list[Any]:
        x, parameter = torch.ones(2) * 2, nn.Parameter(torch.ones(2))
        again = pickle.loads(pickle.dumps(x))
        again.add_(1)
        read = pickle.loads(pickle.dumps(parameter))
        return [x, again, type(read).__name__, read * 2, copy.copy(x), copy.deepcopy(x)]

    if chosen() == "python":
        pytest.skip("the Python recorder's tensors cannot be unpickled in a cell")
    check_cell(recorder, body)


@native_only
def test_safetensors_files_are_read_in_a_cell(recorder: Recorder, tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")

    def body() -> list[torch.Tensor]:
        safetensors.save_file({"a": torch.ones(2) * 2}, tmp_path / "a.safetensors")
        return [safetensors.load_file(tmp_path / "a.safetensors")["a"] * 2]

    check_cell(recorder, body)


@native_only
def test_numpy_of_what_requires_grad_follows_the_grad_mode(recorder: Recorder) -> None:
    def body(layer: nn.Linear) -> list[Any]:
        layer(torch.ones(1, 2))
        with torch.no_grad():
            found = [layer.weight.numpy().copy(), (torch.ones(2, requires_grad=True) * 2).numpy().copy()]
        with pytest.raises(RuntimeError, match="requires grad"):
            layer.weight.numpy()
        return found

    check_cell(recorder, body, nn.Linear(2, 1))


@native_only
def test_shared_memory_stays_shared_and_is_seen(recorder: Recorder) -> None:
    def body(layer: nn.Linear) -> list[Any]:
        before = layer(torch.ones(1, 2))
        layer.share_memory()
        x = (torch.ones(3) * 3).share_memory_()
        x.add_(1)
        return [layer.weight.is_shared(), x.is_shared(), before, layer(torch.ones(1, 2)), x * 2, layer]

    check_cell(recorder, body, nn.Linear(2, 2))


@native_only
@pytest.mark.parametrize("name", ["spectral_norm", "orthogonal", "weight_norm"])
def test_parametrizations_train(recorder: Recorder, name: str) -> None:
    def body() -> list[Any]:
        layer = _parametrized(name)
        layer(torch.ones(1, 3)).sum().backward()
        return [layer(torch.ones(2, 3)), layer]

    check_cell(recorder, body)


@native_only
def test_modules_that_learn_their_sizes_work(recorder: Recorder) -> None:
    def body() -> list[Any]:
        model = nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d(), nn.LazyLinear(2))
        found = model(torch.randn(5, 3))
        found.sum().backward()
        return [found, model]

    check_cell(recorder, body)


@native_only
def test_traced_and_exported_programs_compute_the_same(recorder: Recorder) -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    def body() -> list[Any]:
        shift = torch.randn(3)
        traced = make_fx(lambda x: (x.sin() * shift).sum() + torch.ones(3).sum())(torch.randn(3))
        model = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
        exported = torch.export.export(model, (torch.ones(1, 2) * 1,))
        return [traced(torch.ones(3)), traced.code, exported.module()(torch.ones(1, 2))]

    check_cell(recorder, body)


@native_only
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_code_is_recorded(recorder: Recorder) -> None:
    before = torch.compile(lambda x: (x * 2).sin())

    def body(model: nn.Module) -> list[Any]:
        compiled = torch.compile(model)
        found = compiled(torch.ones(1, 2))
        found.sum().backward()
        return [found, before(torch.ones(3) * 2), model]

    with torch.compiler.set_stance("force_eager"):  # what compiled code computes is another question
        found = check_cell(recorder, body, nn.Sequential(nn.Linear(2, 3), nn.ReLU()))
    assert is_lazy(found[0])


@native_only
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_code_of_a_cell_needs_no_compiler(recorder: Recorder) -> None:
    model = nn.Linear(2, 3)
    expected = model(torch.ones(1, 2))
    with cell(recorder):
        found = torch.compile(model)(torch.ones(1, 2))
    assert is_lazy(found)
    assert torch.equal(found.detach().cpu(), expected.detach())


def test_cuda_events_and_streams_speak_of_the_pool(recorder: Recorder) -> None:
    with cell(recorder):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        with torch.cuda.stream(torch.cuda.Stream()):
            found = torch.ones(2) * 2
        end.record()
        torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
        end.synchronize()
        assert 0 < start.elapsed_time(end) < 60_000
        with pytest.raises(ValueError, match="enable_timing"):
            torch.cuda.Event().elapsed_time(end)
    assert found.tolist() == [2, 2]


def test_what_only_one_gpu_could_answer_does_nothing_or_is_refused(recorder: Recorder) -> None:
    cuda: Any = torch.cuda
    with cell(recorder):
        assert cuda.init() is cuda.ipc_collect() is cuda.empty_cache() is cuda.synchronize() is None
        assert cuda.set_per_process_memory_fraction(0.5, device=0) is None
        for what in ("peak_memory_stats", "accumulated_memory_stats", "peak_host_memory_stats"):
            assert getattr(cuda, f"reset_{what}")() is None
        assert cuda.reset_max_memory_allocated(0) is cuda.reset_max_memory_cached(device="cuda") is None
        for name in ("mem_get_info", "get_device_capability", "memory_summary", "max_memory_allocated"):
            with pytest.raises(CaptureError, match=rf"cuda\.{name}: .* which device[^%]*%djinn status"):
                getattr(cuda, name)(0)
        for name in ("memory_snapshot", "utilization", "temperature"):
            with pytest.raises(CaptureError, match="which device"):
                getattr(cuda, name)()
        assert not cuda.is_bf16_supported()
    with pytest.raises((AssertionError, RuntimeError)):
        cuda.get_device_properties(0)


@native_only
def test_recurrent_layers_equal_eager_with_gradients_and_without(recorder: Recorder) -> None:
    def body(layer: nn.Module, x: torch.Tensor) -> list[Any]:
        found = [layer(x)[0]]
        with torch.no_grad():
            found.append(layer(x)[0])
        found[0].sum().backward()
        return [*found, layer]

    check_cell(recorder, body, nn.LSTM(4, 6, batch_first=True), torch.randn(2, 5, 4))


def test_forward_mode_works_where_it_is_used_first() -> None:
    """Its first use compiles functions of torch with TorchScript, which knows builtin ones by identity."""
    program = """
import torch
from djinn_lab.capture.recorders import capturing, make_recorder
from in_process import InProcessBackend
from torch.func import jvp

recorder = make_recorder(InProcessBackend())
with capturing(recorder, "cell", __file__):
    print(*(result.tolist() for result in jvp(torch.square, (torch.ones(2),), (torch.ones(2),))))
    recorder.finish("cell end")
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", program.replace("__file__", "'cell'")],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["[1.0,", "1.0]", "[2.0,", "2.0]"], done.stderr


@pytest.mark.native_recorder(reason="the Python recorder copies each tensor by itself")
def test_copies_share_memory_as_the_originals_do(recorder: Recorder) -> None:
    with cell(recorder):
        a = torch.ones(3) * 2
        same = copy.copy(a)
        whole, part = copy.deepcopy((a, a[1:]))
        part.fill_(9)
        a.mul_(3)
        wide = copy.deepcopy((torch.ones(1) * 4).expand(5))
    assert a.tolist() == same.tolist() == [6, 6, 6]
    assert whole.tolist() == [2, 9, 9]
    assert part.tolist() == [9, 9]
    assert (wide.stride(), wide.tolist()) == ((0,), [4] * 5)
    one, other = copy.deepcopy((a, a[1:]))
    other.fill_(4)
    assert one.tolist() == [6, 4, 4]
    weight = torch.nn.Parameter(torch.ones(2))
    with cell(recorder):
        (weight * 2).sum().backward()
        alias = copy.copy(weight)
        with torch.no_grad():
            weight.add_(1)
    assert type(alias) is torch.nn.Parameter
    assert alias.requires_grad
    assert alias.tolist() == [2, 2]


@pytest.mark.native_recorder(reason="the Python recorder's tensors are pickled as plain ones")
def test_attributes_of_a_tensor_go_along_with_its_copies(recorder: Recorder) -> None:
    plain = torch.ones(2)
    plain.note = "kept"
    with cell(recorder):
        a = torch.ones(2) * 2
        a.note = ["kept"]
        copies = [copy.copy(a), copy.deepcopy(a), pickle.loads(pickle.dumps(a))]
    assert all(each.note == ["kept"] for each in copies)
    assert copies[1].note is not a.note
    assert copy.copy(plain).note == "kept"
    assert copy.copy(plain).data_ptr() == plain.data_ptr()


def test_printing_plain_tensors_in_a_cell_asks_the_pool_nothing(
    recorder: Recorder, backend: InProcessBackend
) -> None:
    loaded = {"weight": torch.arange(9.0).view(3, 3) / 7, "written": torch.ones(2)}
    with cell(recorder):
        first = repr(loaded)
        assert not backend.cuts
        loaded["written"] += 1
        second = repr(loaded)
    assert first == repr({"weight": torch.arange(9.0).view(3, 3) / 7, "written": torch.ones(2)})
    assert second == repr(loaded) != first
