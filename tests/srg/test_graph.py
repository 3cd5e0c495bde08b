"""What the graph says about nodes: origin, bytes, aliasing, phase, residency, modality."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from drawn_programs import Step, build, steps
from hypothesis import given
from programs import HOLE, LAYER, Script
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch_recording import Recording

from djinn_lab.srg.graph import SRG, Node
from djinn_lab.srg.program import Program
from djinn_lab.srg.structure import structure_of


def graph_of(recording: Recording, **marks: tuple[torch.Tensor, ...]) -> SRG:
    return SRG.from_program(recording.program(**marks))


def nodes_of(srg: SRG, name: str) -> list[Node]:
    return [node for node in srg.nodes if node.op.split(".")[1] == name]


def two_steps() -> Script:
    """x (4x8) @ w (8x16), relu."""
    script = Script(0, LAYER)
    x, w = script.source((4, 8), blob="0" * 64), script.source((8, 16), "weight")
    script.op("aten.relu.default", script.op("aten.mm.default", x, w, shape=(4, 16)), shape=(4, 16))
    return script


def test_a_captured_graph_has_nodes_edges_and_values() -> None:
    srg = SRG.from_program(two_steps().program(keep=(3,)))
    product, active = srg.nodes
    assert (product.id, product.op, product.module, product.call, product.cell, product.line) == (
        0,
        "aten.mm.default",
        "Net.layer",
        1,
        "cell",
        3,
    )
    assert (product.flops, product.flops_counted) == (2 * 4 * 8 * 16, True)
    assert (product.bytes_read, product.bytes_written) == (4 * (32 + 128), 4 * 64)
    assert (product.shape, product.dtype, product.inputs, product.outputs) == (
        (4, 16),
        "float32",
        (0, 1),
        (2,),
    )
    assert (active.flops, active.flops_counted) == (64, False)
    assert [(edge.source, edge.target, edge.value, edge.nbytes) for edge in srg.edges] == [
        (None, 0, 0, 128),
        (None, 0, 1, 512),
        (0, 1, 2, 256),
    ]
    assert [srg.values[value].residency for value in range(4)] == ["input", "weight", "activation", "output"]
    assert [srg.values[value].upload_bytes for value in range(4)] == [128, 0, 0, 0]
    assert [srg.values[value].producer for value in range(4)] == [None, None, 0, 1]


def test_views_cost_nothing_and_keep_their_bases_residency() -> None:
    script = Script(0, LAYER)
    w = script.source((8, 4), "weight")
    transposed = script.op("aten.t.default", w, shape=(4, 8), view=True)
    srg = SRG.from_program(script.program(keep=(transposed,)))
    (node,) = srg.nodes
    assert node.is_view
    assert (node.flops, node.bytes_read, node.bytes_written, node.residency) == (0, 0, 0, "weight")


def test_a_reader_depends_on_the_last_write_through_any_alias() -> None:
    script = Script(0, LAYER)
    x = script.source((6,))
    base = script.op("aten.relu.default", x, shape=(6,))
    view = script.op("aten.view.default", base, shape=(6,), args=[HOLE, [6]], view=True)
    script.write("aten.add_.Tensor", base, x)
    script.op("aten.neg.default", view, shape=(6,))
    srg = SRG.from_program(script.program())
    assert {edge.source for edge in srg.edges if edge.target == 3} == {1, 2}
    assert srg.nodes[2].writes == (base,)
    assert not srg.nodes[2].is_view


def test_an_update_in_place_reads_and_writes_and_stays_a_weight() -> None:
    script = Script(0, LAYER)
    w, gradient = script.source((10,), "weight"), script.source((10,))
    script.write("aten.add_.Tensor", w, gradient)
    srg = SRG.from_program(script.program(keep=(w,)))
    (node,) = srg.nodes
    assert (node.bytes_read, node.bytes_written, node.residency) == (80, 40, "weight")
    assert srg.values[w].producer is None


def test_a_lookup_reads_the_rows_it_returns_and_not_the_table() -> None:
    with Recording() as recording:
        F.embedding(torch.zeros(3, dtype=torch.long), torch.nn.Parameter(torch.randn(1000, 4)))
    (node,) = nodes_of(graph_of(recording), "embedding")
    assert node.bytes_read == 3 * 8 + 3 * 4 * 4
    assert node.flops == 0


def test_expanded_inputs_count_the_memory_that_exists() -> None:
    with Recording() as recording:
        torch.ones(1, 4).expand(1000, 4) + 1
    (node,) = nodes_of(graph_of(recording), "add")
    assert (node.bytes_read, node.bytes_written) == (16, 16000)


def attention_block(queries: int, keys: int, fused: bool) -> SRG:
    q, k, v = torch.randn(1, 2, queries, 8), torch.randn(1, 2, keys, 8), torch.randn(1, 2, keys, 8)
    backend = SDPBackend.FLASH_ATTENTION if fused else SDPBackend.MATH
    with Recording() as recording, torch.no_grad(), sdpa_kernel(backend):
        F.scaled_dot_product_attention(q, k, v)
    return graph_of(recording)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize(
    ("queries", "keys", "phase"), [(5, 5, "prefill"), (1, 9, "decode"), (2, 9, "decode"), (1, 1, "forward")]
)
def test_phase_follows_from_query_and_key_length(fused: bool, queries: int, keys: int, phase: str) -> None:
    assert {node.phase for node in attention_block(queries, keys, fused).nodes} == {phase}


@pytest.mark.parametrize(
    ("lengths", "phase"),
    [
        ([(5, 5)], "prefill"),
        ([(1, 9), (1, 1)], "decode"),
        ([(2, 9)], "decode"),
        ([(6, 6), (1, 7)], "prefill"),
        ([(1, 1)], ""),
        ([], ""),
    ],
)
def test_program_is_a_prefill_or_a_decode_step_as_its_attentions_say(
    lengths: list[tuple[int, int]], phase: str
) -> None:
    with Recording() as recording, torch.no_grad():
        for queries, keys in lengths:
            F.scaled_dot_product_attention(*(torch.randn(1, 2, n, 8) for n in (queries, keys, keys)))
        torch.ones(2).relu()
    program = recording.program()
    assert structure_of(program).phase(program.metas) == phase


def test_training_step_is_neither_prefill_nor_decode() -> None:
    x = torch.randn(1, 2, 4, 8, requires_grad=True)
    with Recording() as recording:
        F.scaled_dot_product_attention(x, x, x).sum().backward()
    program = recording.program()
    assert structure_of(program).phase(program.metas) == ""


def test_each_root_call_has_its_own_phase() -> None:
    with Recording() as recording, torch.no_grad():
        for call, queries in ((1, 6), (2, 1)):
            recording.call = call
            F.scaled_dot_product_attention(*(torch.randn(1, 2, n, 8) for n in (queries, 6, 6)))
        recording.call = 3
        torch.relu(torch.ones(3))
        recording.call, recording.phase = 0, "other"
        torch.relu(torch.ones(3))
    by_call: dict[int, set[str]] = {}
    for node in graph_of(recording).nodes:
        by_call.setdefault(node.call, set()).add(node.phase)
    assert by_call == {1: {"prefill"}, 2: {"decode"}, 3: {"forward"}, 0: {"other"}}


def test_training_keeps_the_captured_phases() -> None:
    x = torch.randn(1, 2, 4, 8, requires_grad=True)
    with Recording() as recording:
        loss = F.scaled_dot_product_attention(x, x, x).sum()
        recording.phase = "backward"
        loss.backward()
        recording.phase = "optimizer"
        with torch.no_grad():
            x.sub_(0.1)
    assert {node.phase for node in graph_of(recording).nodes} == {"forward", "backward", "optimizer"}


def test_a_growing_cache_is_kv_and_ordinary_concatenation_is_not() -> None:
    past_k, past_v = torch.randn(1, 2, 6, 8), torch.randn(1, 2, 6, 8)
    with Recording() as recording, torch.no_grad():
        keys = torch.cat([past_k, torch.randn(1, 2, 1, 8)], dim=-2)
        values = torch.cat([past_v, torch.randn(1, 2, 1, 8)], dim=-2)
        query = torch.cat([torch.randn(1, 2, 1, 4), torch.randn(1, 2, 1, 4)], dim=-1)
        result = F.scaled_dot_product_attention(query, keys, values)
    srg = graph_of(recording, keep=(keys, values), fetch=(result,))
    assert [node.residency for node in nodes_of(srg, "cat")] == ["kv", "kv", "activation"]
    assert [v.residency for v in srg.values.values() if v.producer is None] == ["kv", "kv"]
    assert srg.values[srg.fetch[0]].residency == "output"


def test_a_cache_grown_twice_and_repeated_for_grouped_heads_is_kv() -> None:
    empty = torch.empty(0)
    with Recording() as recording, torch.no_grad():
        keys = torch.cat([empty, torch.randn(1, 2, 3, 8)], dim=-2)
        keys = torch.cat([keys, torch.randn(1, 2, 1, 8)], dim=-2)
        repeated = keys[:, :, None].expand(1, 2, 2, 4, 8).reshape(1, 4, 4, 8)
        scores = torch.softmax(torch.randn(1, 4, 1, 8) @ repeated.transpose(2, 3) * 0.3, dim=-1)
        scores @ repeated
    assert [node.residency for node in nodes_of(graph_of(recording), "cat")] == ["kv", "kv"]


def test_a_cache_written_in_place_is_kv() -> None:
    cache = torch.zeros(1, 2, 10, 8)
    with Recording() as recording, torch.no_grad():
        cache.index_copy_(2, torch.tensor([3]), torch.randn(1, 2, 1, 8))
        F.scaled_dot_product_attention(torch.randn(1, 2, 1, 8), cache, cache)
    srg = graph_of(recording)
    assert nodes_of(srg, "index_copy_")[0].residency == "kv"


def test_text_vision_audio_tabular_and_their_mixture() -> None:
    tokens, image, sound, table = (
        torch.zeros(2, 5, dtype=torch.long),
        torch.randn(2, 3, 8, 8),
        torch.randn(2, 1, 50),
        torch.randn(4, 6),
    )

    def modalities(text: bool = False, vision: bool = False, audio: bool = False) -> list[str]:
        with Recording() as recording, torch.no_grad():
            parts = []
            if text:
                parts.append(F.embedding(tokens, torch.randn(10, 4)).mean(1))
            if vision:
                parts.append(F.conv2d(image, torch.randn(4, 3, 3, 3)).mean((2, 3)))
            if audio:
                parts.append(F.conv1d(sound, torch.randn(4, 1, 3)).mean(2))
            torch.stack(parts).relu()
        found = [node.modality for node in graph_of(recording).nodes]
        return [modality for modality in found if modality != "unknown"]

    assert set(modalities(text=True)) == {"text"}
    assert set(modalities(vision=True)) == {"vision"}
    assert set(modalities(audio=True)) == {"audio"}
    assert modalities(text=True, vision=True)[-1] == "mixed"
    with Recording() as recording, torch.no_grad():
        F.linear(table, torch.randn(3, 6), torch.randn(3)).relu()
    assert {node.modality for node in graph_of(recording).nodes} == {"tabular"}
    with Recording() as recording:
        torch.ones(3) + 1
    assert {node.modality for node in graph_of(recording).nodes} == {"unknown"}


@given(steps)
def test_edges_point_forward_and_cover_every_input(plan: list[Step]) -> None:
    program = build(plan)
    srg = SRG.from_program(program)
    assert [node.id for node in srg.nodes] == list(range(len(program.nodes)))
    assert all(edge.source is None or edge.source < edge.target for edge in srg.edges)
    pairs = {(edge.target, edge.value) for edge in srg.edges}
    assert pairs == {(node.id, value) for node in srg.nodes for value in node.inputs}
    for node in srg.nodes:
        assert min(node.flops, node.bytes_read, node.bytes_written) >= 0


def test_the_graph_of_nothing() -> None:
    srg = SRG.from_program(Program([], [], [], [], []))
    assert (srg.nodes, srg.edges, dict(srg.values), srg.flops) == ((), (), {}, 0)


def test_sources_alone_have_values() -> None:
    script = Script(0, LAYER)
    x = script.source((3,))
    srg = SRG.from_program(script.program(fetch=(x,)))
    assert srg.values[x].nbytes == 12
