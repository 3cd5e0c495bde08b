"""The op tables that ship with the package agree with torch."""

from __future__ import annotations

from importlib.resources import files

import torch

from djinn_lab.capture import allow_list
from djinn_lab.srg.ops import allowed_ops, random_ops, written_holes
from djinn_lab.srg.program import Template, TensorHole

HOLE = TensorHole()


def test_the_shipped_table_is_what_torch_says() -> None:
    shipped = files("djinn_lab.srg").joinpath("operators.txt").read_text(encoding="utf-8")
    assert shipped.splitlines() == list(allow_list.table()), "run python -m djinn_lab.capture.allow_list"
    drawing = {"aten.native_dropout.default", "aten.normal_.default", "aten.multinomial.default"}
    assert drawing <= random_ops()


def test_every_allowed_op_exists() -> None:
    for op in allowed_ops():
        _, name, overload = op.split(".")
        assert getattr(getattr(torch.ops.aten, name), overload)


def test_ops_that_eager_torch_runs_on_a_cpu_are_allowed() -> None:
    needed = """mm.default addmm.default convolution.default convolution_backward.default
    mkldnn_rnn_layer.default
    mkldnn_rnn_layer_backward.default _scaled_dot_product_flash_attention_for_cpu.default
    _scaled_dot_product_flash_attention_for_cpu_backward.default _foreach_add_.List
    _fused_adamw_.default _fused_sgd_.default
    native_dropout.default bernoulli_.float normal_.default uniform_.default embedding_dense_backward.default
    native_batch_norm.default native_layer_norm_backward.default index_put_.default
    _to_copy.default copy_.default
    randperm.default nonzero.default masked_select.default _unsafe_view.default as_strided.default"""
    assert {f"aten.{op}" for op in needed.split()} <= allowed_ops()


def test_ops_that_reach_beyond_tensors_are_not() -> None:
    denied = """from_file set_ record_stream set_data pin_memory _pin_memory _print item
    _local_scalar_dense is_pinned
    _sparse_coo_tensor_unsafe to_sparse quantize_per_tensor _nested_tensor_from_tensor_list cudnn_convolution
    to_mkldnn mkldnn_linear requires_grad_ _backward _make_dual rename"""
    allowed = {op.split(".")[1] for op in allowed_ops()}
    assert allowed & set(denied.split()) == set()


def test_an_op_with_a_required_generator_storage_or_stream_is_not_allowed() -> None:
    for op, schema in allow_list._schemas():
        if op in allowed_ops():
            types = {str(argument.type) for argument in schema.arguments}
            assert not types & {"Generator", "Storage", "Stream", "QScheme", "Any"}


def test_written_inputs_are_found_by_position_and_by_name() -> None:
    assert written_holes(Template("aten.add_.Tensor", [HOLE, HOLE], {})) == (0,)
    assert written_holes(Template("aten.add.Tensor", [HOLE, HOLE], {})) == ()
    assert written_holes(Template("aten.add.out", [HOLE, HOLE], {"out": HOLE})) == (2,)
    assert written_holes(Template("aten._foreach_add_.List", [[HOLE, HOLE], [HOLE, HOLE]], {})) == (0, 1)
    norm = Template("aten.native_batch_norm.default", [HOLE, HOLE, None, HOLE, HOLE, True, 0.1, 1e-5], {})
    assert written_holes(norm) == (2, 3)
    norm.args[5] = False
    assert written_holes(norm) == ()


def test_torch_really_writes_what_the_table_says() -> None:
    mean, var = torch.zeros(3), torch.ones(3)
    torch.ops.aten.native_batch_norm(torch.randn(8, 3), None, None, mean, var, True, 0.5, 1e-5)
    assert mean.any()
    assert (var != 1).any()
    mean, var = torch.zeros(3), torch.ones(3)
    torch.ops.aten.native_batch_norm(torch.randn(8, 3), None, None, mean, var, False, 0.5, 1e-5)
    assert not mean.any()
