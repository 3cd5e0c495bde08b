"""The structural hash is a matter of structure alone, and exports lose nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import networkx
import pytest
from drawn_programs import Step, build, steps, tangled
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import LAYER, Script

from djinn_lab.native import load
from djinn_lab.srg import identity as module
from djinn_lab.srg.export import from_json, to_dot, to_json, to_networkx
from djinn_lab.srg.graph import SRG
from djinn_lab.srg.identity import structural_hash
from djinn_lab.srg.program import Program, Scope, encode_program

HASH_FILE = """
import sys
from djinn_lab.srg.program import decode_program
from djinn_lab.srg.graph import SRG
print(SRG.from_program(decode_program(open(sys.argv[1], "rb").read())).structural_hash)
"""


@given(steps, st.integers(1, 10**6))
def test_ids_tables_and_scopes_do_not_matter(plan: list[Step], shift: int) -> None:
    program, shifted = build(plan), build(plan, first_id=shift)
    renamed = msgspec.structs.replace(
        shifted,
        metas=[*shifted.metas, *shifted.metas],
        scopes=[Scope("Other.path", 7, "another cell", 99, "forward")],
        sources=list(reversed(shifted.sources)) if shifted.nodes else shifted.sources,
    )
    if all(source.value in {v for n in shifted.nodes for v in n.inputs} for source in shifted.sources):
        assert structural_hash(renamed) == structural_hash(program)
    assert structural_hash(shifted) == structural_hash(program)


def variants() -> dict[str, Program]:
    def make(op: str = "aten.add.Tensor", size: int = 4, scalar: float = 2.0, swap: bool = False) -> Program:
        script = Script(0, LAYER)
        x, y = script.source((size,)), script.source((size,), "weight")
        first, second = (y, x) if swap else (x, y)
        total = script.op(op, first, second, shape=(size,))
        scaled = script.op("aten.mul.Scalar", total, shape=(size,), scalars=(scalar,))
        return script.program(keep=(scaled,))

    base = make()
    return {
        "base": base,
        "another op": make(op="aten.sub.Tensor"),
        "another shape": make(size=5),
        "another scalar": make(scalar=3.0),
        "another type of scalar": make(scalar=2),
        "another wiring": make(swap=True),
        "nothing kept": msgspec.structs.replace(base, keep=()),
        "fetched": msgspec.structs.replace(base, fetch=base.keep),
        "other residency": msgspec.structs.replace(
            base, sources=[msgspec.structs.replace(source, residency="input") for source in base.sources]
        ),
        "aliased sources": msgspec.structs.replace(
            base, sources=[msgspec.structs.replace(source, storage=0) for source in base.sources]
        ),
        "another dtype": msgspec.structs.replace(
            base, metas=[msgspec.structs.replace(meta, dtype="float64") for meta in base.metas]
        ),
        "random": msgspec.structs.replace(base, rng_state=b"state"),
    }


def test_every_structural_difference_shows() -> None:
    hashes = {name: structural_hash(program) for name, program in variants().items()}
    assert len(set(hashes.values())) == len(hashes)


@given(steps, steps)
def test_different_programs_hash_differently(one: list[Step], other: list[Step]) -> None:
    first, second = build(one), build(other)
    assert (structural_hash(first) == structural_hash(second)) == (
        encode_program(first) == encode_program(second)
    )


@pytest.mark.skipif(load("wire") is None, reason="the wire extension is not built")
@settings(deadline=None, max_examples=300)
@given(tangled)
def test_the_hash_is_the_same_without_the_extension(program: Program) -> None:
    native = load("wire")
    assert native is not None
    assert native.hashed_content(encode_program(program)) == module._content(program)


@pytest.mark.skipif(load("wire") is None, reason="the wire extension is not built")
@settings(deadline=None)
@given(tangled, st.data())
def test_bytes_that_are_damaged_are_refused_or_have_other_content(
    program: Program, data: st.DataObject
) -> None:
    native = load("wire")
    assert native is not None
    encoded = bytearray(encode_program(program))
    for _ in range(data.draw(st.integers(1, 3))):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    try:
        assert native.hashed_content(bytes(encoded))
    except ValueError:
        return


def test_another_process_computes_the_same_hash(tmp_path: Path) -> None:
    program = variants()["base"]
    file = tmp_path / "program"
    file.write_bytes(encode_program(program))
    for seed in ("1", "2"):
        result = subprocess.run(
            [sys.executable, "-c", HASH_FILE, str(file)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert result.stdout.strip() == SRG.from_program(program).structural_hash


@given(steps)
def test_json_round_trip(plan: list[Step]) -> None:
    srg = SRG.from_program(build(plan))
    assert from_json(json.loads(json.dumps(to_json(srg)))) == srg


def test_json_of_another_format_or_shape_is_refused() -> None:
    document = to_json(SRG.from_program(build([])))
    with pytest.raises(ValueError, match="format 99"):
        from_json({**document, "format": 99})
    with pytest.raises(msgspec.ValidationError):
        from_json({"nodes": 3})


@given(steps)
def test_networkx_has_every_node_and_edge_and_no_cycle(plan: list[Step]) -> None:
    srg = SRG.from_program(build(plan))
    graph = to_networkx(srg)
    assert {node.id for node in srg.nodes} <= set(graph.nodes)
    assert graph.number_of_edges() == len(srg.edges)
    assert networkx.is_directed_acyclic_graph(graph)
    for node in srg.nodes:
        assert graph.nodes[node.id]["op"] == node.op


def test_dot_names_every_node_and_escapes_text() -> None:
    script = Script(0, LAYER)
    script.scope = Scope('Net."odd"\\name', 1, "cell", 1, "forward")
    x = script.source((3,))
    script.op("aten.relu.default", x, shape=(3,))
    text = to_dot(SRG.from_program(script.program()))
    assert 'n0 [label="relu.default\\nNet.\\"odd\\"\\\\name\\nfloat32 3"]' in text
    assert 'v0 -> n0 [label="12 B"]' in text
    assert text.startswith("digraph srg {")
    assert text.endswith("}")
