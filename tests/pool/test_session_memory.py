"""Session memory on a live pool: real workers, real copies, sessions that hold more than the devices."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from device_kind import KIND
from parked import arenas, flip_a_byte
from real_pool import PoolUnderTest, kill_worker, wait_for
from torch import nn

from djinn_lab.client.session import Session
from djinn_lab.errors import DeviceMemoryError, OptionError, Refused, ValueLost
from djinn_lab.jobs import Terms
from djinn_lab.memory.snapshot import Counters
from djinn_lab.pool.launch import start_pool
from djinn_lab.protocol.rest.sessions import MemorySession

pytestmark = pytest.mark.processes

MIB = 2**20
DEVICE_BYTES = 64 * MIB
STATE_BYTES = 20 * MIB
"""Three of these fit a device."""
SLABS_BYTES = 32 * MIB
"""What one takes of an accelerator's host memory, which goes in slabs of 16 MiB."""
SLOW_LINK = 40 * MIB
"""Half a second for a session."""
ROOMY = {"host_bytes": 4 * DEVICE_BYTES, "link_bytes_per_s": 0}
VICTIMS = 20
"""The first number of a state that no other test makes: bytes of equal states may still be on the host."""


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PoolUnderTest]:
    """A pool with one device that holds three sessions, and a host that holds twelve more."""
    with PoolUnderTest(tmp_path_factory.mktemp("memory"), f"{KIND}:1", DEVICE_BYTES, **ROOMY) as pool:
        yield pool


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PoolUnderTest]:
    """A pool like ``pool``, on a link that needs half a second for a session."""
    options = {**ROOMY, "link_bytes_per_s": SLOW_LINK}
    with PoolUnderTest(tmp_path_factory.mktemp("slow"), f"{KIND}:1", DEVICE_BYTES, **options) as pool:
        yield pool


def state_of(number: int) -> torch.Tensor:
    return torch.arange(STATE_BYTES // 4, dtype=torch.int32).mul_(2 * number + 1)


def hold(session: Session, number: int) -> torch.Tensor:
    """Make twenty MiB that only the pool has."""
    with session.capture():
        return state_of(number)


def memory_of(pool: PoolUnderTest, session: Session) -> MemorySession:
    own = session.welcome.session
    return next(row for row in pool.rest.memory().sessions if row.session == own)


def counters(pool: PoolUnderTest) -> Counters:
    return pool.rest.memory().counters


def grown(before: Counters, after: Counters, name: str) -> int:
    return getattr(after, name) - getattr(before, name)


def sessions(pool: PoolUnderTest, count: int, stack: ExitStack) -> list[Session]:
    return [stack.enter_context(pool.session()) for _ in range(count)]


def test_eight_sessions_live_where_three_fit_and_find_everything_again(pool: PoolUnderTest) -> None:
    before = counters(pool)
    with ExitStack() as stack:
        opened = sessions(pool, 8, stack)
        held = [hold(session, number) for number, session in enumerate(opened)]
        tiers = {memory_of(pool, session).tier for session in opened}
        for number in (0, 5, 2, 7, 1, 6, 3, 4):
            assert torch.equal(opened[number].fetch(held[number]), state_of(number))
    after = counters(pool)
    assert tiers == {"device", "host"}
    assert grown(before, after, "evictions") >= 5
    assert grown(before, after, "restores") >= 5
    assert grown(before, after, "hash_checks") > 0
    assert grown(before, after, "mismatches") == 0
    assert grown(before, after, "values_lost") == 0


def test_models_and_optimizers_train_on_after_being_parked_bit_for_bit(pool: PoolUnderTest) -> None:
    """Three models with AdamW: parameters, gradients and moments of one fill half of the device."""
    torch.manual_seed(0)
    models = [nn.Sequential(nn.Linear(700, 1200), nn.ReLU(), nn.Linear(1200, 700)) for _ in range(3)]
    data = torch.randn(3, 4, 700)
    expected = [copy.deepcopy(model) for model in models]
    for model, x in zip(expected, data, strict=True):
        train(model, torch.optim.AdamW(model.parameters()), x, 4)
    before = counters(pool)
    with ExitStack() as stack:
        opened = sessions(pool, 3, stack)
        optimizers = [torch.optim.AdamW(model.parameters()) for model in models]
        for _ in range(2):
            for session, model, optimizer, x in zip(opened, models, optimizers, data, strict=True):
                with session.capture():
                    train(model, optimizer, x, 2)
        for session, model, wanted in zip(opened, models, expected, strict=True):
            found = session.fetch(model)
            for mine, theirs in zip(found.parameters(), wanted.parameters(), strict=True):
                assert torch.equal(mine, theirs)
    assert grown(before, counters(pool), "restores") >= 2


def train(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), x).backward()
        optimizer.step()


def test_generation_resumes_from_a_parked_cache(tmp_path: Path) -> None:
    """The caches are found by the graph's structure; the program does not mark them."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_embd=64, n_head=4, n_layer=4, vocab_size=300, n_positions=2048, bos_token_id=0, eos_token_id=0
    )
    plain = transformers.GPT2LMHeadModel(config).eval()
    prompts = torch.randint(1, 300, (6, 1, 1200))
    expected = [continued(plain, prompt, None, 3)[0] for prompt in prompts]
    with (
        PoolUnderTest(tmp_path, f"{KIND}:1", 12 * MIB, host_bytes=64 * MIB, link_bytes_per_s=0) as pool,
        ExitStack() as stack,
    ):
        opened = sessions(pool, 6, stack)
        models = [copy.deepcopy(plain) for _ in opened]
        found: list[list[torch.Tensor]] = [[] for _ in opened]
        caches: list[Any] = [None] * 6
        inputs = list(prompts)
        for _ in range(3):
            for number, session in enumerate(opened):
                with session.capture():
                    tokens, caches[number] = continued(models[number], inputs[number], caches[number], 1)
                found[number] += tokens
                inputs[number] = tokens[-1]
        kv_bytes = memory_of(pool, opened[-1]).kv_bytes
        for number, session in enumerate(opened):
            mine = [session.fetch(token) for token in found[number]]
            assert [token.tolist() for token in mine] == [token.tolist() for token in expected[number]]
        assert counters(pool).restores > 0
        assert kv_bytes >= 4 * 2 * 1200 * 64 * 4


def continued(model: Any, tokens: torch.Tensor, cache: Any, steps: int) -> tuple[list[torch.Tensor], Any]:
    """Generate ``steps`` greedy tokens after ``tokens``."""
    found = []
    with torch.no_grad():
        for _ in range(steps):
            output = model(input_ids=tokens, cache=cache, use_cache=True)
            tokens, cache = output.logits[:, -1:].argmax(-1), output.cache
            found.append(tokens)
    return found, cache


def test_equal_weights_of_two_sessions_lie_on_the_device_once(pool: PoolUnderTest) -> None:
    weights = torch.randn(STATE_BYTES // 4)
    with pool.session() as ann, pool.session() as bob:
        mine, theirs = weights.clone(), weights.clone()
        with ann.capture():
            a = mine.sum()
        used = wait_for(lambda: pool.rest.memory().devices[0].used_bytes)
        with bob.capture():
            b = theirs.sum()
        assert float(ann.fetch(a)) == float(bob.fetch(b))
        assert pool.rest.memory().devices[0].used_bytes - used < STATE_BYTES / 2
        with bob.capture():
            theirs += 1
        assert torch.equal(bob.fetch(theirs), weights + 1)
        assert torch.equal(ann.fetch(mine), weights)


def test_values_dropped_while_parked_free_the_host(pool: PoolUnderTest) -> None:
    with ExitStack() as stack:
        opened = sessions(pool, 5, stack)
        held: list[torch.Tensor | None] = [hold(session, number) for number, session in enumerate(opened)]
        parked = next(n for n, session in enumerate(opened) if memory_of(pool, session).tier == "host")
        held[parked] = None
        with opened[parked].capture():
            small = torch.ones(3) + 1
        assert opened[parked].fetch(small).tolist() == [2.0, 2.0, 2.0]
        wait_for(lambda: memory_of(pool, opened[parked]).total_bytes < MIB)
        wait_for(lambda: host_holds_only_what_sessions_have(pool))


def host_holds_only_what_sessions_have(pool: PoolUnderTest) -> bool:
    seen = pool.rest.memory()
    stored = sum(row.stored_bytes for row in seen.sessions)
    return bool(seen.devices[0].host_used_bytes <= stored + MIB)


def test_a_parked_session_survives_its_device(pool: PoolUnderTest) -> None:
    with ExitStack() as stack:
        opened = sessions(pool, 5, stack)
        held = [hold(session, number) for number, session in enumerate(opened)]
        wait_for(lambda: all(row.stored_bytes == row.total_bytes for row in pool.rest.memory().sessions))
        left = arenas(pool)
        kill_worker(pool)
        for number, session in enumerate(opened):
            with session.capture():
                held[number] += 1
            assert torch.equal(session.fetch(held[number]), state_of(number) + 1)
        wait_for(lambda: not left & arenas(pool))


def test_killed_workers_leave_no_more_in_host_memory_than_its_limit(tmp_path: Path) -> None:
    host_bytes = 4 * (STATE_BYTES if KIND == "cpu" else SLABS_BYTES)
    with (
        PoolUnderTest(tmp_path, f"{KIND}:1", DEVICE_BYTES, host_bytes=host_bytes, link_bytes_per_s=0) as pool,
        ExitStack() as stack,
    ):
        opened = sessions(pool, 5, stack)
        held = [hold(session, number) for number, session in enumerate(opened)]
        for kills in range(3):
            kill_worker(pool)
            for number, session in enumerate(opened):
                with session.capture():
                    held[number] += 1
                assert torch.equal(session.fetch(held[number]), state_of(number) + kills + 1)
                assert sum(path.stat().st_blocks * 512 for path in arenas(pool)) <= host_bytes + MIB  # pages


def test_what_was_written_since_the_copy_is_made_again_from_it_and_never_read_old(
    slow: PoolUnderTest,
) -> None:
    with slow.session() as session:
        held = hold(session, 1)
        wait_for(lambda: memory_of(slow, session).stored_bytes == STATE_BYTES)
        with session.capture():
            held += 1
        kill_worker(slow)
        assert torch.equal(session.fetch(held), state_of(1) + 1)
        again = hold(session, 2)
        assert torch.equal(session.fetch(again), state_of(2))


def test_bytes_that_changed_while_parked_are_never_handed_out(pool: PoolUnderTest) -> None:
    """Negative control: a flipped byte on the host costs its own session, and no other."""
    before = counters(pool)
    with ExitStack() as stack:
        opened = sessions(pool, 5, stack)
        held = [hold(session, VICTIMS + number) for number, session in enumerate(opened)]
        victim = next(n for n, session in enumerate(opened) if memory_of(pool, session).tier == "host")
        flip_a_byte(arenas(pool), state_of(VICTIMS + victim).numpy().tobytes()[:4096])
        with pytest.raises(ValueLost, match="not what was stored"):
            opened[victim].fetch(held[victim])
        for number, session in enumerate(opened):
            if number != victim:
                assert torch.equal(session.fetch(held[number]), state_of(VICTIMS + number))
        assert grown(before, counters(pool), "mismatches") == 1
        again = hold(opened[victim], 9)
        assert torch.equal(opened[victim].fetch(again), state_of(9))


def test_past_device_and_host_a_new_session_waits_and_says_why(tmp_path: Path) -> None:
    with (
        PoolUnderTest(
            tmp_path, f"{KIND}:1", DEVICE_BYTES, host_bytes=DEVICE_BYTES, link_bytes_per_s=0
        ) as pool,
        ExitStack() as stack,
    ):
        opened = sessions(pool, 5, stack)
        held = [hold(session, number) for number, session in enumerate(opened)]
        late = stack.enter_context(pool.session())
        done: list[torch.Tensor] = []
        thread = threading.Thread(target=lambda: done.append(late.fetch(hold(late, 9))))
        thread.start()
        job = wait_for(lambda: next((one for one in pool.rest.jobs() if "full" in one.reason), None))
        assert (job.session, job.state) == (late.welcome.session, "QUEUED")  # it has nothing to restore
        assert [one.state for one in pool.rest.queue().waiting] == ["QUEUED"]
        assert pool.rest.why(job.job).state == "QUEUED"
        asked = pool.rest.what_if(job.job, priority="HIGH")
        assert asked.sentence.startswith(
            "When it starts with that cannot be predicted, since it waits for memory."
        )
        (waiting,) = pool.rest.memory().deferred
        assert waiting.release.of_other_sessions
        assert torch.equal(opened[0].fetch(held[0]), state_of(0))
        assert not done
        opened[1].close()
        opened[2].close()
        thread.join(30)
        assert torch.equal(done[0], state_of(9))
        assert torch.equal(opened[4].fetch(held[4]), state_of(4))


def test_the_disk_takes_what_the_host_cannot(tmp_path: Path) -> None:
    with (
        PoolUnderTest(
            tmp_path, f"{KIND}:1", DEVICE_BYTES, host_bytes=DEVICE_BYTES, disk_bytes=2**30, link_bytes_per_s=0
        ) as pool,
        ExitStack() as stack,
    ):
        opened = sessions(pool, 9, stack)
        held = [hold(session, number) for number, session in enumerate(opened)]
        assert {row.tier for row in pool.rest.memory().sessions} >= {"device", "host", "disk"}
        for number, session in enumerate(opened):
            assert torch.equal(session.fetch(held[number]), state_of(number))
        assert counters(pool).demotions > 0
        assert counters(pool).mismatches == 0


def test_session_closed_during_its_copy_frees_its_memory_and_harms_no_other(slow: PoolUnderTest) -> None:
    with ExitStack() as stack:
        opened = sessions(slow, 5, stack)
        held = [hold(session, number) for number, session in enumerate(opened)]
        parked = [n for n, session in enumerate(opened) if memory_of(slow, session).tier == "host"]
        assert opened[parked[0]].signal_phase("SOON").answer == "accepted"
        wait_for(lambda: any(row.moving for row in slow.rest.memory().sessions))
        for number in parked:
            opened[number].close()
        left = next(n for n in range(5) if n not in parked)
        assert torch.equal(opened[left].fetch(held[left]), state_of(left))
    wait_for(lambda: slow.rest.memory().devices[0].used_bytes == 0)
    wait_for(lambda: slow.rest.memory().devices[0].host_used_bytes == 0)


def test_an_early_wish_to_compute_joins_the_copy_under_way(slow: PoolUnderTest) -> None:
    with ExitStack() as stack:
        opened = sessions(slow, 4, stack)
        held = [hold(session, number) for number, session in enumerate(opened)]
        parked = next(n for n, session in enumerate(opened) if memory_of(slow, session).tier == "host")
        opened[(parked + 1) % 4].close()
        before = counters(slow)
        opened[parked].signal_phase("SOON")
        assert torch.equal(opened[parked].fetch(held[parked]), state_of(parked))
        after = counters(slow)
        assert grown(before, after, "restores") == 1


def test_signals_are_answered_and_change_no_result(pool: PoolUnderTest) -> None:
    with pool.session() as session:
        held = hold(session, 3)
        assert session.signal_phase("IO_WAIT", expected_s=5).answer == "accepted"
        row = memory_of(pool, session)
        assert row.phase == "IO_WAIT"
        assert row.wake_at_s is not None
        assert session.signal_phase("IO_WAIT", expected_s=10 * 86400).answer == "clipped"
        assert session.signal_phase("SOON").answer == "accepted"
        assert session.signal_phase("COMPUTE").answer == "accepted"
        assert session.signal_phase("COMPUTE").answer == "accepted"
        assert torch.equal(session.fetch(held), state_of(3))


def test_a_finished_cell_waits_and_a_running_one_computes(pool: PoolUnderTest) -> None:
    with pool.session() as session:
        hold(session, 1)
        wait_for(lambda: memory_of(pool, session).phase == "IO_WAIT")


def test_cell_whose_session_cannot_move_to_its_target_fails_and_loses_nothing(tmp_path: Path) -> None:
    """The host has the state of another session, so this one stays where it is."""
    small = {"host_bytes": STATE_BYTES + 4 * MIB, "disk_bytes": 0, "link_bytes_per_s": 0}
    count = STATE_BYTES // 4
    here, there = Terms(target=f"{KIND}:0"), Terms(target=f"{KIND}:1")
    with PoolUnderTest(tmp_path, f"{KIND}:2", DEVICE_BYTES, **small) as pool, ExitStack() as stack:
        parked, large, session = sessions(pool, 3, stack)
        with parked.capture(terms=here):
            elsewhere = torch.arange(count, dtype=torch.int32)
        parked.signal_phase("IO_WAIT", 1000.0)
        with large.capture(terms=here):
            immovable = torch.arange(count, 3 * count, dtype=torch.int32)
        with session.capture(terms=here):
            held = torch.ones(1)
        with session.capture(terms=here):
            held = torch.arange(3 * count, 4 * count, dtype=torch.int32)
        wait_for(lambda: [one for one in pool.rest.memory().sessions if one.tier == "host"])
        refused = pytest.raises(
            Refused, match=f"it has the target {KIND}:1, and its session cannot be moved there"
        )
        with refused, session.capture(terms=there):
            int(held.mul_(3)[1])
        with refused, session.capture(terms=there):
            held.mul_(5)
        assert int(held[1]) == 3 * count + 1
        assert int(immovable[1]) == count + 1
        assert int(elsewhere[1]) == 1


def test_what_fits_no_device_is_still_refused_at_its_line(pool: PoolUnderTest) -> None:
    with pool.session() as session, pytest.raises(DeviceMemoryError, match="needs"), session.capture():
        kept = torch.ones(DEVICE_BYTES, dtype=torch.int32) + 1
        assert kept.numel() == DEVICE_BYTES


def test_a_host_tier_larger_than_the_machine_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setenv("DJINN_RUNTIME_DIR", str(tmp_path))
    with pytest.raises(OptionError, match="that this machine has left"):
        start_pool(devices="cpu:1", host_bytes=2**50)


def test_cell_on_full_tiers_is_deferred_with_a_reason_and_memory_rests(
    tmp_path: Path,
) -> None:
    """Each session makes a second state in its next cell, and no session closes."""
    small = {"host_bytes": 60 * MIB, "disk_bytes": 60 * MIB, "link_bytes_per_s": 200 * MIB}
    with PoolUnderTest(tmp_path, f"{KIND}:1", 100 * MIB, **small) as pool, ExitStack() as stack:
        opened = sessions(pool, 7, stack)
        held = [hold(session, number) for number, session in enumerate(opened)]

        def grow(number: int) -> None:
            with opened[number].capture():
                held.append(held[number] + 1)

        for number in range(7):
            cell = threading.Thread(target=grow, args=(number,))
            cell.start()
            wait_for(lambda cell=cell: not cell.is_alive() or pool.rest.memory().deferred)
            wait_for(lambda cell=cell: not cell.is_alive() or at_rest(pool))
            if cell.is_alive():
                break
        assert cell.is_alive(), "all cells were granted memory"
        (deferred,) = wait_for(lambda: pool.rest.memory().deferred)
        assert "fill the device and the tiers below; it waits for a session to close" in deferred.reason
        opened[number - 1].close()
        cell.join(30)
        assert not cell.is_alive()
        assert torch.equal(opened[number].fetch(held[-1]), state_of(number) + 1)


def at_rest(pool: PoolUnderTest) -> bool:
    """Whether no copy is under way, and none begins within a second."""
    before = counters(pool)
    time.sleep(1)
    still = all(row.moving is None for row in pool.rest.memory().sessions)
    return still and counters(pool) == before
