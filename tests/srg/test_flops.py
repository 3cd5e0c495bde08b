"""FLOPs equal ``torch.utils.flop_counter`` on every op that it counts, forwards and backwards."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode, flop_registry
from torch_recording import Recording

from djinn_lab.srg.estimates import estimate_flops
from djinn_lab.srg.flops import COUNTED, fill_template
from djinn_lab.srg.graph import SRG
from djinn_lab.srg.ops import allowed_ops, base_name
from djinn_lab.srg.program import Template, TensorHole, TensorMeta

FOR_CPU = "_scaled_dot_product_flash_attention_for_cpu"


def both_counts(work: Callable[[], object]) -> tuple[SRG, int]:
    """Our graph of ``work``, and what torch counted in the same run."""
    with FlopCounterMode(display=False) as counter, Recording() as recording:
        work()
    return SRG.from_program(recording.program()), counter.get_total_flops()


def leaf(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype).requires_grad_()


def backward_of(make: Callable[[], torch.Tensor]) -> Callable[[], object]:
    return lambda: make().sum().backward()


CASES: dict[str, Callable[[], object]] = {
    "mm": lambda: leaf(3, 4).detach() @ leaf(4, 5).detach(),
    "matmul of three dimensions": lambda: leaf(2, 3, 4).detach() @ leaf(2, 4, 5).detach(),
    "linear": backward_of(lambda: F.linear(leaf(7, 4), leaf(5, 4), leaf(5))),
    "linear over a batch of sequences": backward_of(lambda: F.linear(leaf(2, 7, 4), leaf(5, 4), leaf(5))),
    "addmm": lambda: torch.addmm(torch.ones(5), torch.ones(3, 4), torch.ones(4, 5)),
    "bmm": backward_of(lambda: torch.bmm(leaf(6, 3, 4), leaf(6, 4, 5))),
    "baddbmm": backward_of(lambda: torch.baddbmm(leaf(6, 3, 5), leaf(6, 3, 4), leaf(6, 4, 5))),
    "an empty product": lambda: torch.ones(0, 4) @ torch.ones(4, 5),
    "einsum": backward_of(lambda: torch.einsum("bhqd,bhkd->bhqk", leaf(2, 3, 4, 5), leaf(2, 3, 6, 5))),
    "conv1d": backward_of(lambda: F.conv1d(leaf(2, 3, 20), leaf(6, 3, 5), leaf(6), stride=2, padding=1)),
    "conv2d": backward_of(lambda: F.conv2d(leaf(2, 3, 10, 12), leaf(6, 3, 3, 2), leaf(6), padding=1)),
    "conv2d with groups": backward_of(lambda: F.conv2d(leaf(2, 4, 10, 12), leaf(8, 2, 3, 3), groups=2)),
    "conv2d, dilated": backward_of(lambda: F.conv2d(leaf(2, 3, 12, 12), leaf(6, 3, 3, 3), dilation=2)),
    "conv2d, input gradient only": backward_of(lambda: F.conv2d(leaf(2, 3, 9, 9), torch.ones(6, 3, 3, 3))),
    "conv2d, weight gradient only": backward_of(lambda: F.conv2d(torch.ones(2, 3, 9, 9), leaf(6, 3, 3, 3))),
    "conv3d": backward_of(lambda: F.conv3d(leaf(1, 2, 5, 6, 7), leaf(4, 2, 2, 3, 3))),
    "transposed conv1d": backward_of(lambda: F.conv_transpose1d(leaf(2, 3, 9), leaf(3, 5, 4), stride=2)),
    "transposed conv2d": backward_of(
        lambda: F.conv_transpose2d(leaf(2, 4, 6, 5), leaf(4, 3, 3, 3), stride=2, output_padding=1)
    ),
    "transposed conv2d with groups": backward_of(
        lambda: F.conv_transpose2d(leaf(2, 4, 6, 5), leaf(4, 3, 3, 3), groups=2)
    ),
    "half precision": lambda: torch.ones(3, 4, dtype=torch.bfloat16) @ torch.ones(4, 5, dtype=torch.bfloat16),
    "out=": lambda: torch.mm(torch.ones(3, 4), torch.ones(4, 5), out=torch.empty(3, 5)),
}


@pytest.mark.parametrize("case", CASES, ids=list(CASES))
def test_counted_flops_equal_torch(case: str) -> None:
    srg, expected = both_counts(CASES[case])
    assert srg.counted_flops == expected
    assert case == "an empty product" or expected > 0


def attention(queries: int, keys: int, heads: int = 4) -> torch.Tensor:
    query, key, value = leaf(2, heads, queries, 8), leaf(2, heads, keys, 8), leaf(2, heads, keys, 8)
    return F.scaled_dot_product_attention(query, key, value)


@pytest.mark.parametrize(("queries", "keys"), [(5, 5), (1, 9), (3, 7)])
def test_math_attention_equals_torch(queries: int, keys: int) -> None:
    with sdpa_kernel(SDPBackend.MATH):
        srg, expected = both_counts(backward_of(lambda: attention(queries, keys)))
    assert srg.counted_flops == expected > 0


@pytest.mark.parametrize(("queries", "keys"), [(5, 5), (1, 9), (3, 7)])
def test_cpu_flash_attention_equals_torchs_formula_for_flash_attention(queries: int, keys: int) -> None:
    with Recording() as recording, sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        attention(queries, keys).sum().backward()
    srg = SRG.from_program(recording.program())
    q, k = (2, 4, queries, 8), (2, 4, keys, 8)
    flops = {base_name(node.op): node.flops for node in srg.nodes if node.flops_counted}
    aten = torch.ops.aten
    assert flops == {
        FOR_CPU: flop_registry[aten._scaled_dot_product_flash_attention](q, k, k),
        f"{FOR_CPU}_backward": flop_registry[aten._scaled_dot_product_flash_attention_backward](q, q, k, k),
    }


def test_grouped_query_attention_counts_the_querys_heads() -> None:
    shapes = [(2, 8, 5, 16), (2, 2, 7, 16), (2, 2, 7, 32)]
    metas = [TensorMeta("float32", shape, (1, 1, 1, 1)) for shape in shapes]
    call = fill_template(Template("", [TensorHole()] * 3, {}), metas, [], [])
    expected = flop_registry[torch.ops.aten._scaled_dot_product_flash_attention](*shapes)
    assert COUNTED[FOR_CPU](call) == expected


def test_a_training_step_of_a_small_network_equals_torch() -> None:
    net = torch.nn.Sequential(
        torch.nn.Conv2d(1, 8, 3, padding=1),
        torch.nn.BatchNorm2d(8),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(8 * 16, 10),
    )
    optimizer = torch.optim.AdamW(net.parameters())

    def step() -> None:
        loss = F.cross_entropy(net(torch.randn(4, 1, 8, 8)), torch.zeros(4, dtype=torch.long))
        loss.backward()
        optimizer.step()

    srg, expected = both_counts(step)
    assert srg.counted_flops == expected > 0
    assert srg.unknown_flops == ()
    assert srg.flops > srg.counted_flops


def test_an_lstm_counts_what_its_matrices_do() -> None:
    lstm = torch.nn.LSTM(6, 5)
    with Recording() as recording, torch.no_grad():
        lstm(torch.randn(7, 3, 6))
    srg = SRG.from_program(recording.program())
    assert srg.flops >= 2 * 7 * 3 * (4 * 5 * 6 + 4 * 5 * 5)
    assert srg.unknown_flops == ()


def test_every_op_that_torch_counts_and_a_graph_may_name_has_a_formula() -> None:
    counted = {str(op).removeprefix("aten.") for op in flop_registry if str(op).startswith("aten.")}
    allowed = {base_name(op) for op in allowed_ops()}
    assert counted & allowed <= COUNTED.keys()


def test_pointwise_ops_of_torch_have_an_estimate() -> None:
    """All but special functions: those are reported as unknown."""
    meta = TensorMeta("float32", (4,), (1,))
    call = fill_template(Template("", [TensorHole()], {}), [meta], [meta], [])
    missing = set()
    for op in allowed_ops():
        _, name, overload = op.split(".")
        tags = getattr(getattr(torch.ops.aten, name), overload).tags
        if (
            torch.Tag.pointwise in tags
            and not name.startswith("special_")
            and estimate_flops(name, call) is None
        ):
            missing.add(name)
    assert missing == set()


def test_in_place_and_list_ops_count_like_their_plain_forms() -> None:
    meta = TensorMeta("float32", (10,), (1,))
    plain = fill_template(Template("", [TensorHole()], {}), [meta], [meta], [])
    listed = fill_template(Template("", [[TensorHole()]], {}), [meta], [], [meta])
    assert estimate_flops("mul", plain) == estimate_flops("mul_", plain) == 10
    assert estimate_flops("_foreach_mul_", listed) == 10


def test_an_unknown_op_counts_nothing_and_is_named() -> None:
    with Recording() as recording:
        torch.special.airy_ai(torch.ones(3))
        torch.special.zeta(torch.ones(3), 2.0)
        torch.special.laguerre_polynomial_l(torch.ones(3), 2)
    assert SRG.from_program(recording.program()).unknown_flops == ("special_laguerre_polynomial_l",)
