"""Random numbers: the CPU's, or of a generator of each device."""

from __future__ import annotations

import standin
import torch
from isolated import on_standin

DEVICE = "standin:0"


@on_standin(manual=True, host_random=True)
def test_host_random_draws_what_the_cpu_would() -> None:
    torch.manual_seed(5)
    of_device = [torch.rand(3, device=DEVICE).cpu(), torch.randn(3).cpu()]
    torch.manual_seed(5)
    of_cpu = [torch.rand(3), torch.randn(3)]
    assert all(torch.equal(a, b) for a, b in zip(of_device, of_cpu, strict=True))


@on_standin(devices=2, manual=True, host_random=False)
def test_devices_have_default_generators_of_their_own() -> None:
    torch.manual_seed(5)
    first = torch.rand(3, device=DEVICE)
    host = torch.rand(3)
    second = torch.rand(3, device="standin:1")
    torch.manual_seed(5)
    assert torch.equal(torch.rand(3), host)
    assert torch.equal(first.cpu(), second.cpu())
    assert torch.equal(torch.rand(3, device=DEVICE), first)
    standin.manual_seed_all(6)
    assert not torch.equal(torch.rand(3, device=DEVICE), first)


@on_standin(manual=True, host_random=False)
def test_state_of_the_default_generator_comes_back() -> None:
    state = standin.get_rng_state(DEVICE)
    drawn = torch.rand(3, device=DEVICE)
    standin.set_rng_state(state, DEVICE)
    assert torch.equal(torch.rand(3, device=DEVICE), drawn)
    with torch.random.fork_rng(devices=[0], device_type="standin"):
        inside = torch.rand(3, device=DEVICE)
    assert torch.equal(torch.rand(3, device=DEVICE), inside)


@on_standin(manual=True)
def test_given_generator_is_drawn_from() -> None:
    generator = torch.Generator(DEVICE).manual_seed(7)
    first = torch.rand(3, device=DEVICE, generator=generator)
    assert torch.equal(torch.rand(3, device=DEVICE, generator=generator.manual_seed(7)), first)
    assert torch.equal(torch.rand(3, generator=torch.Generator().manual_seed(7)), first.cpu())
