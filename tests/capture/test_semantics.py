"""A captured cell gives what eager torch gives: values, aliasing, random numbers, errors."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from in_process import InProcessBackend, cell
from torch import nn
from torch.nn import functional as F

from djinn_lab.capture.lazy import is_lazy
from djinn_lab.capture.recorders import Recorder, make_recorder
from djinn_lab.srg.plan_key import plan_key
from djinn_lab.srg.program import encode_program

# The 38-case battery in which an earlier public prototype of lazy capture got 8 silently wrong and 7 raising.
BATTERY: dict[str, Callable[[], object]] = {
    "add_": lambda: torch.ones(3).add_(2),
    "setitem": lambda: _written(torch.zeros(4), lambda x: x.__setitem__(0, 5)),
    "write through a view": lambda: _written(torch.zeros(4, 4), lambda x: x[1].add_(3)),
    "write through a transpose": lambda: _written(torch.zeros(2, 3), lambda x: x.t()[0].fill_(7)),
    "masked_fill_": lambda: torch.arange(6.0).masked_fill_(torch.arange(6) > 2, -1),
    "index by tensor": lambda: torch.arange(6.0)[torch.tensor([4, 1])],
    "index by mask": lambda: torch.arange(6.0)[torch.arange(6) % 2 == 0],
    "nonzero": lambda: torch.tensor([0, 3, 0, 2]).float().mul(2).nonzero(),
    "argmax": lambda: torch.randn(4, 5).argmax(1),
    "stack": lambda: torch.stack([torch.ones(2) * 2, torch.zeros(2) + 1]),
    "topk": lambda: torch.randn(10).topk(3),
    "sort": lambda: torch.randn(10).sort(descending=True),
    "max over a dimension": lambda: torch.randn(3, 4).max(dim=1),
    "index_select": lambda: torch.randn(3, 4).index_select(1, torch.tensor([2, 0])),
    "gather": lambda: torch.randn(3, 4).gather(1, torch.tensor([[0], [1], [3]])),
    "scatter_": lambda: torch.zeros(3, 4).scatter_(1, torch.tensor([[0], [1], [3]]), 9.0),
    "split and write": lambda: _written(torch.zeros(6), lambda x: x.split(2)[1].add_(1)),
    "unbind and write": lambda: _written(torch.zeros(2, 3), lambda x: x.unbind(0)[1].mul_(0).add_(4)),
    "expand": lambda: torch.arange(3.0).expand(2, 3) + 1,
    "flip and cumsum": lambda: torch.arange(6.0).view(2, 3).flip(1).cumsum(0),
    "conj": lambda: torch.view_as_complex(torch.randn(3, 2)).conj() * 2,
    "integer division": lambda: torch.arange(7) // 2,
    "type promotion": lambda: torch.arange(3) + 0.5,
    "bool arithmetic": lambda: (torch.arange(4) > 1) + 1,
    "where": lambda: torch.where(torch.randn(5) > 0, 1.0, -1.0),
    "einsum": lambda: torch.einsum("bij,bjk->bik", torch.randn(2, 3, 4), torch.randn(2, 4, 5)),
    "attention": lambda: F.scaled_dot_product_attention(*torch.randn(3, 1, 2, 4, 8), is_causal=True),
    "convolution": lambda: F.conv2d(torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3), padding=1),
    "layer norm": lambda: F.layer_norm(torch.randn(2, 5), (5,)),
    "batch norm in training": lambda: nn.BatchNorm1d(5)(torch.randn(4, 5)),
    "interpolate": lambda: F.interpolate(torch.randn(1, 1, 4, 4), scale_factor=2, mode="bilinear"),
    "embedding": lambda: F.embedding(torch.tensor([1, 2, 1]), torch.randn(5, 3)),
    "multihead attention": lambda: nn.MultiheadAttention(8, 2, batch_first=True)(*torch.randn(3, 2, 4, 8)),
    "lstm": lambda: nn.LSTM(4, 6)(torch.randn(5, 2, 4)),
    "random numbers": lambda: (
        torch.rand(3),
        torch.randn(3),
        torch.randperm(5),
        torch.bernoulli(torch.rand(4)),
    ),
    "dropout": lambda: F.dropout(torch.ones(50), 0.4),
    "empty tensors": lambda: torch.zeros(0, 3).sum(0),
    "zero-dimensional": lambda: torch.tensor(3.0) * 2 + 1,
    "linalg": lambda: torch.linalg.qr(torch.randn(4, 4)),
    "fft": lambda: torch.fft.rfft(torch.randn(8)),
}


def _written(tensor: torch.Tensor, write: Callable[[torch.Tensor], object]) -> torch.Tensor:
    write(tensor)
    return tensor


def _leaves(tree: object) -> list[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        return [tree.cpu()]
    return [leaf for item in tree for leaf in _leaves(item)]  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", BATTERY)
def test_op_equals_eager_bit_for_bit(name: str, recorder: Recorder) -> None:
    torch.manual_seed(3)
    expected = _leaves(BATTERY[name]())
    torch.manual_seed(3)
    with cell(recorder):
        captured = BATTERY[name]()
    found = _leaves(captured)
    assert len(found) == len(expected)
    for got, want in zip(found, expected, strict=True):
        assert got.dtype == want.dtype
        assert torch.equal(got.detach(), want.detach())


def test_a_cell_with_ops_has_a_graph_with_nodes(recorder: Recorder, backend: InProcessBackend) -> None:
    with cell(recorder):
        y = (torch.ones(2, 2) @ torch.ones(2, 2)).relu()
    ops = [backend.programs[0].templates[node.template].op for node in backend.programs[0].nodes]
    assert ops == ["aten.ones.default", "aten.ones.default", "aten.mm.default", "aten.relu.default"]
    assert y.tolist() == [[2.0, 2.0], [2.0, 2.0]]


def test_metadata_of_a_lazy_tensor_is_read_without_a_request(
    recorder: Recorder, backend: InProcessBackend
) -> None:
    with cell(recorder):
        y = torch.randn(4, 6)[:, ::2].t()
        assert (y.shape, y.dtype, y.stride(), y.device.type) == ((3, 4), torch.float32, (2, 6), "cpu")
        assert backend.programs == []
    assert is_lazy(y)


def test_only_what_is_still_held_is_sent(recorder: Recorder, backend: InProcessBackend) -> None:
    with cell(recorder):
        kept = torch.ones(3) + 1
        for _ in range(50):
            torch.randn(1).numel()
            dropped = torch.ones(1000).exp()
        del dropped
    ops = [backend.programs[0].templates[node.template].op for node in backend.programs[0].nodes]
    assert "aten.exp.default" not in ops
    assert kept.tolist() == [2.0, 2.0, 2.0]


def test_values_without_references_are_released(recorder: Recorder, backend: InProcessBackend) -> None:
    with cell(recorder):
        x = torch.ones(1000)
        y = x * 2
    assert backend.interpreter.memory.used_bytes == 8000
    del x, y
    with cell(recorder):
        pass
    assert backend.interpreter.memory.used_bytes == 0


def test_cuda_means_the_pool(recorder: Recorder) -> None:
    with cell(recorder):
        model = nn.Linear(4, 2).cuda()
        x = torch.randn(3, 4, device="cuda").to(torch.device("cuda"), torch.float64).to("cuda:0")
        y = model(x.float())
        torch.cuda.synchronize()
        assert is_lazy(x)
        assert is_lazy(model.weight)
        assert isinstance(model.weight, nn.Parameter)
    assert y.cpu().shape == (3, 2)


@pytest.mark.parametrize("optimizer", ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad"])
def test_training_equals_eager_bit_for_bit(
    optimizer: str, recorder: Recorder, backend: InProcessBackend
) -> None:
    def train(network: nn.Module) -> torch.Tensor:
        torch.manual_seed(5)
        made = getattr(torch.optim, optimizer)(network.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.StepLR(made, 5, 0.5)
        for _ in range(12):
            x, y = torch.randn(16, 8), torch.randint(0, 3, (16,))
            made.zero_grad()
            loss = F.cross_entropy(network(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            made.step()
            schedule.step()
        return loss

    network = nn.Sequential(
        nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.3), nn.BatchNorm1d(16), nn.Linear(16, 3)
    )
    plain = copy.deepcopy(network)
    with cell(recorder):
        loss = train(network)
    assert {cut.cause for cut in backend.cuts} <= {"streamed", "cell end"}
    expected = train(plain)
    assert loss.item() == expected.item()
    for name, value in plain.state_dict().items():
        assert torch.equal(network.state_dict()[name].cpu(), value), name


def test_training_alternating_inside_and_outside_capture_equals_plain_torch(recorder: Recorder) -> None:
    def step(network: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> None:
        optimizer.zero_grad()
        network(x).square().sum().backward()
        optimizer.step()

    x = torch.randn(4, 3)
    network = nn.Linear(3, 2)
    plain = copy.deepcopy(network)
    optimizers = [torch.optim.Adam(item.parameters(), lr=0.1) for item in (network, plain)]
    identity = network.weight
    for captured in (True, False, True, False):
        if captured:
            with cell(recorder):
                step(network, optimizers[0], x)
        else:
            step(network, optimizers[0], x)
        step(plain, optimizers[1], x)
        assert torch.equal(network.weight.detach().cpu(), plain.weight)
        assert network.weight is identity


def test_plain_tensors_written_in_a_cell_are_never_read_old(recorder: Recorder) -> None:
    x = torch.zeros(3)
    view = x[1:]
    array = x.numpy()
    with cell(recorder):
        x += 1
        x[0] = 9
        assert array.tolist() != [9.0, 2.0, 1.0]
        seen = view * 2
    assert x.tolist() == [9.0, 1.0, 1.0]
    assert view.tolist() == [1.0, 1.0]
    assert array.tolist() == [9.0, 1.0, 1.0]
    assert seen.tolist() == [2.0, 2.0]


def test_writes_outside_reach_the_pool(recorder: Recorder) -> None:
    with cell(recorder):
        x = torch.zeros(2, 2)
        row = x[0]
    row += 3
    x.data[1] = 4
    with cell(recorder):
        y = x * 10
    assert y.tolist() == [[30.0, 30.0], [40.0, 40.0]]
    assert row.tolist() == [3.0, 3.0]


def test_one_random_stream_for_host_and_pool(recorder: Recorder) -> None:
    def draws() -> list[torch.Tensor]:
        found = [torch.rand(2)]
        torch.manual_seed(11)
        found.append(torch.randn(2))
        found.append(torch.randint(0, 100, (3,)))
        return found

    torch.manual_seed(1)
    expected = [*draws(), torch.rand(3)]
    torch.manual_seed(1)
    with cell(recorder):
        captured = draws()
    found = [item.cpu() for item in captured] + [torch.rand(3)]
    assert all(torch.equal(got, want) for got, want in zip(found, expected, strict=True))


def test_data_dependent_control_flow_cuts_and_is_right(recorder: Recorder, backend: InProcessBackend) -> None:
    with cell(recorder):
        x = torch.ones(1) * 3
        steps = 0
        while x.item() < 100:
            x = x * 2
            steps += 1
    assert steps == 6
    assert [cut.cause for cut in backend.cuts] == ["item"] * 7


def _batches(steps: int) -> torch.Tensor:
    data, drawn = torch.arange(500), []
    for _ in range(steps):
        starts = torch.randint(len(data) - 16, (8,))
        rows = [data[start : start + 16] for start in starts]
        ahead = [data[max(0, start // 2 - 3) :][: 2 * start.clamp(1, 2) + 1] for start in starts]
        drawn.append(torch.stack(rows).sum() + torch.cat(ahead).sum())
    return torch.stack(drawn)


def test_indices_drawn_as_a_tensor_are_brought_once_and_not_one_by_one(
    recorder: Recorder, backend: InProcessBackend
) -> None:
    torch.manual_seed(3)
    expected = _batches(3)
    torch.manual_seed(3)
    with cell(recorder):
        drawn = _batches(3)
    assert torch.equal(drawn.cpu(), expected)
    assert len(backend.programs) <= 3 * 4


def test_arithmetic_on_an_integer_that_was_read_stays_exact_and_shares_no_memory(recorder: Recorder) -> None:
    with cell(recorder):
        count = (torch.arange(6) > 2).sum()
        read = int(count)
        later, half, root, copied = count + 1, count / 2, count.sqrt(), count.clone()
        count += 5
        chosen = torch.where(count > 7, later, -later)
        scaled = torch.ones(3) * later
    assert (read, int(count), int(later), int(chosen), int(copied)) == (3, 8, 4, 4, 3)
    assert (half.item(), root.item()) == (1.5, torch.tensor(3).sqrt().item())
    assert later.dtype == chosen.dtype == torch.int64
    assert scaled.tolist() == [4.0, 4.0, 4.0]
    with cell(recorder), pytest.raises(RuntimeError, match="ZeroDivisionError"):
        copied // (copied - 3)


def test_shape_error_is_eagers_own(recorder: Recorder) -> None:
    with pytest.raises(RuntimeError) as eager:
        torch.randn(2, 3) @ torch.randn(4, 5)
    with pytest.raises(RuntimeError) as captured, cell(recorder):
        torch.randn(2, 3) @ torch.randn(4, 5)
    assert str(captured.value) == str(eager.value)


def test_long_chain_is_linear_and_not_recursive(recorder: Recorder) -> None:
    with cell(recorder):
        x = torch.zeros(1)
        for _ in range(5000):
            x = x + 1
    assert x.item() == 5000


def test_data_loader_batches_are_made_on_the_host(recorder: Recorder, backend: InProcessBackend) -> None:
    from torch.utils.data import DataLoader, TensorDataset

    dataset = TensorDataset(torch.arange(20.0).view(10, 2), torch.arange(10))
    with cell(recorder):
        total = torch.zeros(2)
        for x, _ in DataLoader(dataset, batch_size=4, shuffle=True):
            total = total + x.sum(0)
    assert [cut.cause for cut in backend.cuts] == ["cell end"]
    assert total.tolist() == [90.0, 100.0]


def test_device_memory_limit_is_enforced(backend: InProcessBackend) -> None:
    small = InProcessBackend(memory_bytes=2**20)
    recorder = make_recorder(small)
    with cell(recorder):
        kept = torch.ones(1000)
    with pytest.raises(Exception, match=r"needs 4\.0 MiB"), cell(recorder):
        torch.ones(2**20).sum().item()
    assert kept.sum().item() == 1000


def test_a_seed_set_twice_gives_the_same_numbers_twice(recorder: Recorder) -> None:
    with cell(recorder):
        torch.manual_seed(3)
        first = torch.randn(4)
        torch.manual_seed(3)
        second = torch.randn(4)
        state = torch.get_rng_state()
        third = torch.rand(2)
        torch.set_rng_state(state)
        fourth = torch.rand(2)
    assert torch.equal(first, second)
    assert torch.equal(third, fourth)


def test_data_of_plain_and_lazy_tensors_may_be_exchanged(recorder: Recorder) -> None:
    plain, other = torch.zeros(2), nn.Parameter(torch.zeros(2))
    kept = other.square().sum()  # a graph is built on it
    with cell(recorder):
        lazy = torch.ones(2)
        plain.data = lazy
        lazy += 1
    assert plain.tolist() == [2.0, 2.0]
    other.data = lazy
    lazy += 1
    assert (other.tolist(), kept.item()) == ([3.0, 3.0], 0.0)
    source = torch.zeros(2)
    lazy.data = source
    source += 5
    with cell(recorder):
        lazy += 1
    assert source.tolist() == [6.0, 6.0]


@pytest.mark.parametrize("name", ["squeeze_", "unsqueeze_", "t_", "transpose_"])
def test_in_place_views_of_lazy_tensors(name: str, recorder: Recorder) -> None:
    arguments = {"squeeze_": (0,), "unsqueeze_": (0,), "t_": (), "transpose_": (0, 1)}[name]
    expected = torch.arange(6.0).view(1, 6) + 1
    alias = expected
    getattr(expected, name)(*arguments)
    with cell(recorder):
        x = torch.arange(6.0).view(1, 6) + 1
        lazy_alias = x
        getattr(x, name)(*arguments)
        x += 1
    assert x.shape == alias.shape
    assert torch.equal(lazy_alias.cpu(), alias + 1)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
def test_an_op_that_pools_do_not_run_runs_here_and_says_so(
    recorder: Recorder, backend: InProcessBackend
) -> None:
    with cell(recorder):
        x = torch.ones(4) * 3
        quantized = torch.quantize_per_tensor(x, 0.5, 0, torch.qint8)
    assert quantized.dequantize().tolist() == [3.0] * 4
    assert backend.cuts[0].cause == "aten.quantize_per_tensor.default"


def test_meta_tensors_stay_what_they_are(recorder: Recorder) -> None:
    with cell(recorder):
        shape_only = torch.empty(3, 4, device="meta") @ torch.empty(4, 2, device="meta")
    assert shape_only.is_meta
    assert shape_only.shape == (3, 2)


def test_default_device_cuda_means_the_pool(recorder: Recorder) -> None:
    with cell(recorder):
        torch.set_default_device("cuda")
        x = torch.ones(3)
    assert x.tolist() == [1.0] * 3
    assert torch.ones(1).device.type == "cpu"


def test_cpu_inside_a_cell_gives_a_plain_tensor(recorder: Recorder) -> None:
    with cell(recorder):
        fetched = (torch.ones(3) + 1).cpu()
        kind = type(fetched)
    assert kind is torch.Tensor
    assert fetched.tolist() == [2.0] * 3


def test_steps_that_make_tensors_on_the_host_are_equal_programs(
    recorder: Recorder, backend: InProcessBackend
) -> None:
    query, mask = torch.randn(1, 2, 4, 8), torch.ones(4, 4, dtype=torch.bool).tril()
    with cell(recorder):
        for _ in range(12):  # attention makes a zero and an infinity for the mask
            query = F.scaled_dot_product_attention(query, query, query, mask)
            query.sum().item()
    assert len({plan_key(encode_program(program)) for program in backend.programs[2:]}) == 1


def test_a_deep_copy_of_a_result_with_a_graph_is_refused_in_torchs_words(recorder: Recorder) -> None:
    plain = torch.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError) as in_eager:
        copy.deepcopy(plain * 2)
    with cell(recorder), pytest.raises(RuntimeError) as in_cell:
        copy.deepcopy(torch.ones(2, requires_grad=True) * 2)
    assert str(in_cell.value) == str(in_eager.value)
