"""Whatever a client sends, the pool accepts a meaningful graph or says exactly what is wrong with it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from drawn_programs import Step, build, steps
from hypothesis import given
from hypothesis import strategies as st
from programs import HOLE, LAYER, Script, contiguous

from djinn_lab.errors import Refused
from djinn_lab.srg.program import (
    Atom,
    NodeRecord,
    NumericSettings,
    Program,
    ScalarHole,
    Scope,
    Source,
    Template,
    TensorMeta,
    decode_program,
    encode_program,
)
from djinn_lab.srg.validation import ProgramLimits, validate_program


def small_program() -> Program:
    """``relu(x @ w) * 2``, kept."""
    script = Script(0, LAYER)
    x, w = script.source((4, 8)), script.source((8, 16), "weight")
    product = script.op("aten.mm.default", x, w, shape=(4, 16))
    active = script.op("aten.relu.default", product, shape=(4, 16))
    result = script.op("aten.mul.Scalar", active, shape=(4, 16), scalars=(2.0,))
    return script.program(keep=(result,))


def changed(table: str, index: int, **fields: Any) -> Program:
    """The small program with one entry of one table replaced."""
    program = small_program()
    entries = list(getattr(program, table))
    entries[index] = msgspec.structs.replace(entries[index], **fields)
    return msgspec.structs.replace(program, **{table: entries})


def test_a_good_program_is_accepted_before_and_after_the_wire() -> None:
    validate_program(small_program())
    validate_program(decode_program(encode_program(small_program())))


@given(steps)
def test_every_generated_program_is_accepted(plan: list[Step]) -> None:
    validate_program(decode_program(encode_program(build(plan))))


WRONG_ARGUMENTS: dict[str, tuple[str, list[Any], dict[str, Any], str]] = {
    "a number for a layout": ("aten.zeros_like.default", [HOLE], {"layout": 1}, "takes layout for 'layout'"),
    "a text for a device": (
        "aten.zeros_like.default",
        [HOLE],
        {"device": "meta"},
        "takes device for 'device'",
    ),
    "a number for a dtype": ("aten.view.dtype", [HOLE, 13], {}, "takes dtype for 'dtype', not 13"),
    "a number for a memory format": (
        "aten.zeros_like.default",
        [HOLE],
        {"memory_format": 99},
        "takes memory_format for 'memory_format'",
    ),
    "another kind of atom": ("aten.view.dtype", [HOLE, Atom("device", "cpu")], {}, "takes dtype for 'dtype'"),
    "too few arguments": ("aten.max_pool2d.default", [HOLE], {}, "lacks its argument 'kernel_size'"),
    "too many arguments": ("aten.relu.default", [HOLE, 1], {}, "has 2 positional arguments and takes 1"),
    "an argument by keyword only": ("aten.zeros_like.default", [HOLE, None], {}, "has 2 positional"),
    "an unknown argument": ("aten.relu.default", [HOLE], {"where": 1}, "has no argument 'where'"),
    "an argument twice": ("aten.relu.default", [HOLE], {"self": 1}, "is given its argument 'self' twice"),
    "a list for a tensor": ("aten.relu.default", [[HOLE]], {}, "takes no list for 'self'"),
    "a tensor for a list": ("aten.cat.default", [HOLE], {}, "takes a list for 'tensors'"),
    "nothing for a tensor": ("aten.mm.default", [HOLE, None], {}, "needs a value for 'mat2'"),
    "a text for a tensor": ("aten.relu.default", ["x"], {}, "takes Tensor for 'self', not x"),
    "a hole where a size is": ("aten.sum.dim_IntList", [HOLE, [ScalarHole()]], {}, "takes int for 'dim'"),
    "a size beyond 64 bits": (
        "aten.sum.dim_IntList",
        [HOLE, [2**63]],
        {},
        "takes int for 'dim', not 9223372036854775808",
    ),
    "another number of sizes": (
        "aten.max_pool2d.default",
        [HOLE, [1, 2, 3]],
        {},
        "takes 2 values",
    ),
    "an unknown mode": (
        "aten.grid_sampler_2d.default",
        [HOLE, HOLE, 7, 0, False],
        {},
        "takes 0 to 2 for 'interpolation_mode', not 7",
    ),
}

BAD = {
    "an op off the list": (changed("templates", 1, op="aten.from_file.default"), "aten.from_file.default"),
    "a dangling reference": (
        changed("nodes", 1, inputs=(999,)),
        "node 1 (aten.relu.default) reads value 999",
    ),
    "a cycle": (changed("nodes", 0, inputs=(0, 4)), "node 0 (aten.mm.default) reads value 4"),
    "its own result": (changed("nodes", 1, inputs=(3,)), "reads value 3"),
    "a value made twice": (changed("nodes", 2, outputs=(2,)), "produces value 2, which exists already"),
    "an input made again by an op that does not write it": (
        changed("nodes", 1, outputs=(2,)),
        "produces value 2, which exists already",
    ),
    "an id past 63 bits": (changed("nodes", 2, storages=(2**63,)), "invalid id 9223372036854775808"),
    "a source made again": (changed("nodes", 1, outputs=(0,)), "produces value 0"),
    "a source given twice": (changed("sources", 1, value=0), "value 0 occurs twice"),
    "a negative size": (changed("metas", 0, shape=(-4, 8)), "negative size -4"),
    "a negative stride": (changed("metas", 0, stride=(8, -1)), "negative stride -1"),
    "an unknown dtype": (changed("metas", 0, dtype="object"), "unknown dtype 'object'"),
    "more sizes than strides": (changed("metas", 0, stride=(8,)), "2 sizes but 1 strides"),
    "an overflowing size": (changed("metas", 0, shape=(2**40, 2**40)), "overflows"),
    "an overflowing stride": (changed("metas", 0, stride=(2**61, 1)), "overflows"),
    "a tensor too large": (
        changed("metas", 0, shape=(2**20, 2**21), stride=(2**21, 1)),
        "is too large for a pool, which takes at most",
    ),
    "a template that is not there": (changed("nodes", 0, template=9), "template 9 of 3"),
    "a negative template": (changed("nodes", 0, template=-1), "template -1 of 3"),
    "a scope that is not there": (changed("nodes", 0, scope=5), "scope 5 of 1"),
    "a meta that is not there": (changed("nodes", 0, output_metas=(77,)), "output meta outside 0..4"),
    "a source meta that is not there": (changed("sources", 0, meta=-2), "refers to meta -2"),
    "too few inputs": (
        changed("nodes", 0, inputs=(0,)),
        "1 inputs and 0 scalars, but its template has 2 and 0",
    ),
    "too many scalars": (changed("nodes", 0, scalars=(1.0,)), "2 inputs and 1 scalars"),
    "a missing scalar": (changed("nodes", 2, scalars=()), "but its template has 1 and 1 holes"),
    "more metas than outputs": (changed("nodes", 0, output_metas=(0, 1)), "1 outputs, 2 metas"),
    "more storages than outputs": (changed("nodes", 0, storages=(1, 2)), "1 outputs but 2 storages"),
    "half an output": (changed("nodes", 0, storages=(None,)), "has only some of value, meta and storage"),
    "a negative value": (changed("nodes", 2, outputs=(-7,)), "invalid id -7"),
    "a dynamic node in the middle": (
        changed("nodes", 0, dynamic=True, output_metas=()),
        "depend on data but is not the last node",
    ),
    "a dynamic node with metas": (changed("nodes", 2, dynamic=True), "yet states output metas"),
    **{
        what: (changed("templates", 1, op=op, args=args, kwargs=kwargs), wrong)
        for what, (op, args, kwargs, wrong) in WRONG_ARGUMENTS.items()
    },
    "a path for a blob": (changed("sources", 0, blob="../../etc/passwd"), "not a BLAKE3 hex digest"),
    "inline bytes of another size": (changed("sources", 0, inline=b"1234"), "4 inline bytes"),
    "a blob and inline bytes": (
        changed("sources", 0, inline=bytes(128), blob="0" * 64),
        "both a blob and inline",
    ),
    "a negative line": (changed("scopes", 0, line=-1), "negative call or line number"),
    "an endless module name": (changed("scopes", 0, module="m" * 5000), "longer than 4096"),
    "keeping what is not there": (
        msgspec.structs.replace(small_program(), keep=(50,)),
        "keep names value 50",
    ),
    "fetching what is not there": (
        msgspec.structs.replace(small_program(), fetch=(51,)),
        "fetch names value 51",
    ),
    "an unknown device": (
        changed("templates", 1, args=[HOLE], kwargs={"device": Atom("device", "file:///")}),
        "unknown device",
    ),
    "an unknown layout": (
        changed("templates", 1, args=[HOLE], kwargs={"layout": Atom("layout", "sparse_coo")}),
        "unknown layout 'sparse_coo'",
    ),
    "an unknown matmul precision": (
        msgspec.structs.replace(small_program(), settings=NumericSettings(matmul_precision="low")),
        "matmul precision is 'low'",
    ),
    "a huge generator state": (
        msgspec.structs.replace(small_program(), rng_state=bytes(2**17)),
        "random generator state has 131072 bytes",
    ),
}


@pytest.mark.parametrize("case", BAD, ids=list(BAD))
def test_a_bad_program_is_refused_with_its_reason_and_advice(case: str) -> None:
    program, reason = BAD[case]
    with pytest.raises(Refused) as refusal:
        validate_program(program)
    assert reason in refusal.value.message
    assert "Nothing of this segment ran" in refusal.value.advice


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (ProgramLimits(nodes_max=2), "3 nodes, and at most 2"),
        (ProgramLimits(sources_max=1), "2 sources, and at most 1"),
        (ProgramLimits(table_entries_max=2), "metas, and at most 2"),
        (ProgramLimits(rank_max=1), "2 dimensions is too large for a pool, which takes at most 1"),
        (ProgramLimits(tensor_bytes_max=100), "takes at most 100 B"),
        (ProgramLimits(arguments_max=1), "2 arguments, and at most 1"),
    ],
)
def test_limits_are_enforced(limits: ProgramLimits, reason: str) -> None:
    with pytest.raises(Refused, match=reason):
        validate_program(small_program(), limits)


def test_an_in_place_op_may_return_the_value_it_was_given() -> None:
    script = Script(0, LAYER)
    x = script.source((4,))
    script.write("aten.add_.Tensor", x, x)
    validate_program(script.program(keep=(x,)))


def test_optional_inputs_and_results_may_be_absent() -> None:
    program = Program(
        metas=[contiguous(2, 3, 4, 4), contiguous(3)],
        templates=[
            Template("aten.native_group_norm.default", [HOLE, HOLE, HOLE, 2, 3, 16, 1, ScalarHole()], {})
        ],
        scopes=[Scope("", 0, "", 0, "other")],
        sources=[Source(0, 0, 0, "input", None)],
        nodes=[NodeRecord(0, (0, None, None), (1, None, 2), (0, None, 1), (1, None, 2), 0, (1e-5,))],
        keep=(1,),
    )
    validate_program(program)


def test_a_dynamic_last_node_is_accepted() -> None:
    program = small_program()
    nodes = [*program.nodes, NodeRecord(3, (4,), (5,), (), (5,), 0, (), True)]
    templates = [*program.templates, Template("aten.nonzero.default", [HOLE], {})]
    validate_program(msgspec.structs.replace(program, nodes=nodes, templates=templates, fetch=(5,)))


@given(st.binary(max_size=300))
def test_garbage_is_no_program(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_program(data)


def test_deeply_nested_bytes_are_no_program() -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_program(b"\x91" * 1_000_000)


@given(st.data())
def test_a_damaged_program_is_refused_or_harmless_but_never_an_internal_error(data: st.DataObject) -> None:
    encoded = bytearray(encode_program(build(data.draw(steps))))
    for _ in range(data.draw(st.integers(1, 4))):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    try:
        validate_program(decode_program(bytes(encoded)))
    except (msgspec.DecodeError, Refused):
        return


def test_meta_spans() -> None:
    assert TensorMeta("float32", (4, 0), (1, 1)).span_bytes == 0
    validate_program(
        msgspec.structs.replace(small_program(), metas=[*small_program().metas, TensorMeta("bool", (), ())])
    )
