"""The peak of a program: liveness of storages in recorded order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from djinn_lab.memory import predict_peak_bytes
from djinn_lab.srg.program import NodeRecord, Program, Scope, Source, Template, TensorHole, TensorMeta

KIB = TensorMeta("float32", (256,), (1,))
WIDE = TensorMeta("float32", (4, 256), (0, 1))
"""An expanded view: 1 KiB of memory."""
DIGEST = "0" * 64


def program(nodes: list[NodeRecord], sources: tuple[Source, ...] = (), keep: tuple[int, ...] = ()) -> Program:
    template = Template("aten.relu.default", [TensorHole()], {})
    return Program((KIB, WIDE), (template,), (Scope("", 0, "", 0, "other"),), sources, nodes, keep)


def node(inputs: tuple[int, ...], output: int, storage: int | None = None, meta: int = 0) -> NodeRecord:
    return NodeRecord(0, inputs, (output,), (meta,), (output if storage is None else storage,), 0)


def test_a_chain_holds_two_at_a_time() -> None:
    chain = [node((), 1), node((1,), 2), node((2,), 3), node((3,), 4)]
    footprint = predict_peak_bytes(program(chain))
    assert (footprint.peak_bytes, footprint.node) == (2048, 1)


def test_kept_values_stay() -> None:
    chain = [node((), 1), node((1,), 2), node((2,), 3), node((3,), 4)]
    assert predict_peak_bytes(program(chain, keep=(1, 2, 3, 4))).peak_bytes == 4096


def test_views_and_in_place_results_cost_nothing() -> None:
    nodes = [node((), 1), node((1,), 2, storage=1, meta=1), node((2,), 3, storage=1)]
    assert predict_peak_bytes(program(nodes)).peak_bytes == 1024


def test_uploads_count_and_what_the_session_holds_does_not() -> None:
    uploaded, held = Source(1, 1, 0, "input", DIGEST), Source(2, 2, 0, "weight", None)
    footprint = predict_peak_bytes(program([], (uploaded, held)))
    assert (footprint.peak_bytes, footprint.node) == (1024, None)
    in_place = [node((2,), 3, storage=2)]
    assert predict_peak_bytes(program(in_place, (uploaded, held))).peak_bytes == 1024


@st.composite
def chains(draw: st.DrawFn) -> tuple[list[NodeRecord], tuple[int, ...]]:
    """Ops that each make a value from one of those before, and which of the values are kept."""
    count = draw(st.integers(1, 150))
    inputs = [draw(st.integers(max(1, value - 9), value)) for value in range(1, count)]
    nodes = [node((), 1), *(node((read,), made) for made, read in enumerate(inputs, 2))]
    keep = draw(st.sets(st.integers(1, count), max_size=5))
    return nodes, tuple(sorted(keep))


@given(chains(), st.integers(0, 200))
def test_remaining_peak_is_never_more_than_predicted(
    chain: tuple[list[NodeRecord], tuple[int, ...]], executed: int
) -> None:
    nodes, keep = chain
    executed = min(executed, len(nodes) - 1)
    found = predict_peak_bytes(program(nodes, keep=keep)).remaining_bytes(executed)

    def alive(index: int) -> int:
        """Values that were made before op ``index`` and are read from there on, or kept."""
        read = {value for later in nodes[index:] for value in later.inputs}
        return sum(1024 for value in range(1, index + 1) if value in read or value in keep)

    wanted = max(alive(index) + 1024 for index in range(executed, len(nodes))) - alive(executed)
    assert found >= wanted
    if len(nodes) <= 64 and executed:
        assert found == wanted


def test_the_floor_is_what_one_op_needs_by_itself() -> None:
    uploaded, held = Source(1, 1, 0, "input", DIGEST), Source(2, 2, 0, "weight", None)
    nodes = [node((1,), 3), node((2, 3), 4), node((4,), 5)]
    footprint = predict_peak_bytes(program(nodes, (uploaded, held), keep=(3, 4, 5)))
    assert (footprint.floor_bytes, footprint.floor_node) == (3072, 1)
    assert footprint.peak_bytes == 4096


@given(chains())
def test_the_floor_is_never_more_than_the_peak(chain: tuple[list[NodeRecord], tuple[int, ...]]) -> None:
    """Of programs that read nothing that their session held before."""
    nodes, keep = chain
    footprint = predict_peak_bytes(program(nodes, keep=keep))
    assert 0 < footprint.floor_bytes <= footprint.peak_bytes
