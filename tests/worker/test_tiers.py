"""What is stored once, what moves, and what happens when a tier is full or a session leaves."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
from programs import Script
from worker_kit import MIB, Device, done, failed, fetch, keep

from djinn_lab.protocol import worker as messages
from djinn_lab.worker.lanes import Lane, LaneTask
from djinn_lab.worker.restoring import Copied

Make = Callable[..., Device]


# --- parking


def test_every_kind_of_value_comes_back(make_device: Make) -> None:
    device = make_device()
    script = Script()
    numbers = torch.randn(6, 4)
    base = script.load(numbers)
    turned = script.op("aten.t.default", base, meta=_meta((4, 6), (1, 4)), view=True)
    empty = script.load(torch.empty(0))
    kinds = [
        script.load(numbers.to(dtype))
        for dtype in (torch.bfloat16, torch.float64, torch.bool, torch.complex64)
    ]
    values = (base, turned, empty, *kinds)
    device.run("ann", script.program(keep=values))
    before = fetch(device, "ann", script, *values)
    device.park("ann")
    assert device.memory().used_bytes == 0
    restored = device.restore("ann")
    assert restored.checked_pieces > 0
    after = fetch(device, "ann", script, *values)
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    script.write("aten.add_.Tensor", turned, scalars=(1,))  # still the same memory
    device.run("ann", script.program())
    assert torch.equal(fetch(device, "ann", script, base)[0], numbers + 1)


def _meta(shape: tuple[int, ...], stride: tuple[int, ...]) -> messages.TensorMeta:
    return messages.TensorMeta("float32", shape, stride)


def test_a_value_that_is_loaded_again_is_counted_once(make_device: Make) -> None:
    """Counted twice, the device would be short of memory that no value has."""
    device = make_device()
    keep(device, "ann", Script(), torch.randn(1000))
    (again,) = keep(device, "ann", script := Script(), torch.ones(2000))
    assert device.memory().session_bytes["ann"] == 8000
    assert torch.equal(fetch(device, "ann", script, again)[0], torch.ones(2000))
    assert device.memory().used_bytes == 8000


def test_a_value_that_is_computed_again_is_counted_once(make_device: Make) -> None:
    device = make_device()
    for count in (1000, 2000):
        script = Script()  # the same ids again
        loaded = script.load(torch.ones(count))
        double = script.op("aten.add.Tensor", loaded, loaded, meta=script.metas[loaded])
        device.run("ann", script.program(keep=(double,)))
    assert device.memory().used_bytes == 8000
    assert torch.equal(fetch(device, "ann", script, double)[0], torch.full((2000,), 2.0))


def test_a_parked_session_runs_nothing_but_releases(make_device: Make) -> None:
    device = make_device()
    script = Script()
    first, second = keep(device, "ann", script, torch.randn(1000), torch.randn(2000))
    device.park("ann")
    held = device.memory().host_bytes
    outcome = device.try_run("ann", script.program(fetch=(first,)))
    assert outcome.failure is not None
    assert outcome.failure.family == "pool"
    device.run("ann", script.program(release=(second,)))
    assert device.memory().host_bytes < held / 2
    assert done(device.ask(messages.Restore(5, "ann"))).copied_bytes == 4000
    assert fetch(device, "ann", script, first)[0].shape == (1000,)
    assert device.memory().session_bytes["ann"] == 4000


def test_evict_refuses_what_is_not_stored_unless_it_may_discard(make_device: Make) -> None:
    device = make_device()
    script = Script()
    (value,) = keep(device, "ann", script, torch.randn(1000))
    assert "not stored" in failed(device.ask(messages.Evict(1, "ann"))).reason
    device.evict("ann", discard=True)
    assert device.memory().used_bytes == 0
    outcome = device.try_run("ann", script.program(fetch=(value,)))
    assert outcome.failure is not None
    assert outcome.failure.type_name == "ValueLost"


def test_forget_frees_the_host_and_loses_nothing(make_device: Make) -> None:
    device = make_device()
    script = Script()
    tensor = torch.randn(1000)
    (value,) = keep(device, "ann", script, tensor)
    device.store_whole("ann")
    done(device.ask(messages.Forget(2, "ann")))
    assert device.memory().host_bytes == 0
    assert device.memory().unstored_bytes == {"ann": tensor.nbytes}
    device.park("ann")
    assert "only one" in failed(device.ask(messages.Forget(3, "ann"))).reason
    device.restore("ann")
    assert torch.equal(fetch(device, "ann", script, value)[0], tensor)


# --- incremental


def test_store_after_a_write_copies_only_what_was_written(make_device: Make) -> None:
    device = make_device()
    script = Script()
    small, large = keep(device, "ann", script, torch.randn(1000), torch.randn(MIB))
    assert device.store_whole("ann").copied_bytes == 4000 + 4 * MIB
    assert device.store_whole("ann").copied_bytes == 0
    script.write("aten.add_.Tensor", small, scalars=(1,))
    device.run("ann", script.program())
    assert device.memory().unstored_bytes == {"ann": 4000}
    assert device.store_whole("ann").copied_bytes == 4000
    # of a large tensor that is written in one place, the pieces that changed
    view = script.op("aten.slice.Tensor", large, meta=_meta((10,), (1,)), args=[_hole(), 0, 0, 10], view=True)
    script.write("aten.zero_.default", view)
    device.run("ann", script.program())
    assert device.store_whole("ann").copied_bytes == MIB


def _hole() -> object:
    from djinn_lab.srg.program import TensorHole

    return TensorHole()


def decode(device: Device, session: str, script: Script, past: int, tokens: torch.Tensor) -> int:
    grown = script.append(past, script.load(tokens))
    device.run(session, script.program(keep=(grown,), release=(past,)))
    return grown


def token(count: int = 1) -> torch.Tensor:
    return torch.randn(1, 4, count, 32)


TOKEN_BYTES = 4 * 32 * 4


def test_a_growing_cache_moves_its_new_tokens_only(make_device: Make) -> None:
    device = make_device()
    script = Script()
    prompt = token(600)
    (cache,) = keep(device, "ann", script, torch.empty(0))
    cache = decode(device, "ann", script, cache, prompt)
    assert device.memory().kv_bytes == {"ann": 600 * TOKEN_BYTES}
    assert device.memory().ready_bytes == {"ann": 512 * TOKEN_BYTES}
    assert device.store_whole("ann").copied_bytes == 600 * TOKEN_BYTES
    made = [prompt]
    for _ in range(10):
        made.append(token())
        cache = decode(device, "ann", script, cache, made[-1])
    assert device.memory().unstored_bytes == {"ann": 98 * TOKEN_BYTES}
    assert "ann" not in device.memory().ready_bytes
    assert device.store_whole("ann").copied_bytes == 98 * TOKEN_BYTES
    made.append(token(200))
    cache = decode(device, "ann", script, cache, made[-1])
    assert device.memory().ready_bytes == {"ann": 256 * TOKEN_BYTES}
    device.park("ann")
    device.restore("ann")
    assert torch.equal(fetch(device, "ann", script, cache)[0], torch.cat(made, dim=2))


def test_a_cache_that_grows_while_its_pieces_are_copied(make_device: Make) -> None:
    """Write-through during decoding: a value that replaces another inherits its stored pieces."""
    device = make_device()
    script = Script()
    (cache,) = keep(device, "ann", script, torch.empty(0))
    made = [token(1100)]
    cache = decode(device, "ann", script, cache, made[0])
    values = device.interpreter.values_of("ann")
    copied = Copied()
    values.running = True  # as it is while the main thread decodes
    for _ in device.copies.store("ann", values, copied):
        made.append(token())
        cache = decode(device, "ann", script, cache, made[-1])
        values.running = True
    values.running = False
    assert copied.nbytes == 1024 * TOKEN_BYTES
    assert not copied.whole
    assert device.store_whole("ann").copied_bytes == (1100 + 4 - 1024) * TOKEN_BYTES
    device.evict("ann")
    device.restore("ann")
    assert torch.equal(fetch(device, "ann", script, cache)[0], torch.cat(made, dim=2))


# --- sharing


def test_equal_weights_are_on_the_device_and_on_the_host_once(make_device: Make) -> None:
    device = make_device()
    weight = torch.randn(MIB // 2)
    name = device.blob(weight, "weight")
    scripts = {session: Script() for session in ("ann", "bob")}
    values = {session: script.load(weight, name) for session, script in scripts.items()}
    device.run("ann", scripts["ann"].program(keep=(values["ann"],)))
    assert device.memory().session_bytes["ann"] == weight.nbytes
    device.run("bob", scripts["bob"].program(keep=(values["bob"],)))
    memory = device.memory()
    assert (memory.used_bytes, memory.shared_bytes) == (weight.nbytes, weight.nbytes)
    assert memory.session_bytes == {"ann": 0, "bob": 0}
    assert device.park("ann").copied_bytes == weight.nbytes
    assert device.memory().session_bytes["bob"] == weight.nbytes
    assert device.park("bob").copied_bytes == 0
    assert device.memory().used_bytes == 0
    assert device.memory().host_bytes == weight.nbytes
    assert device.restore("ann").copied_bytes == weight.nbytes
    assert device.restore("bob").copied_bytes == 0
    assert device.memory().shared_bytes == device.memory().used_bytes == weight.nbytes
    # one of them writes: the other's is as it was
    scripts["ann"].write("aten.zero_.default", values["ann"])
    device.run("ann", scripts["ann"].program())
    assert device.memory().used_bytes == 2 * weight.nbytes
    assert device.memory().session_bytes == {"ann": weight.nbytes, "bob": weight.nbytes}
    assert not fetch(device, "ann", scripts["ann"], values["ann"])[0].any()
    assert torch.equal(fetch(device, "bob", scripts["bob"], values["bob"])[0], weight)


def test_unshared_weight_is_written_in_place(make_device: Make) -> None:
    device = make_device(memory_bytes=3 * MIB, host_bytes=0)
    weight = torch.randn(MIB // 2)  # 2 MiB: the device holds no two
    script = Script()
    value = script.load(weight, device.blob(weight, "weight"))
    script.write("aten.add_.Tensor", value, scalars=(1,))
    device.run("ann", script.program(keep=(value,)))
    assert torch.equal(fetch(device, "ann", script, value)[0], weight + 1)
    again = script.load(weight, "weight")
    outcome = device.try_run("ann", script.program(keep=(again,)))
    assert outcome.failure is not None
    assert outcome.failure.family == "memory"


def test_two_loads_of_one_blob_are_two_tensors(make_device: Make) -> None:
    device = make_device()
    weight = torch.randn(1000)
    script = Script()
    name = device.blob(weight, "weight")
    one, other = script.load(weight, name), script.load(weight, name)
    script.write("aten.zero_.default", one)
    device.run("ann", script.program(keep=(one, other)))
    found = fetch(device, "ann", script, one, other)
    assert not found[0].any()
    assert torch.equal(found[1], weight)


def test_equal_prompts_are_on_the_host_once(make_device: Make) -> None:
    device = make_device()
    prompt = token(512)
    for session in ("ann", "bob"):
        script = Script()
        (cache,) = keep(device, session, script, torch.empty(0))
        cache = decode(device, session, script, cache, prompt)
        decode(device, session, script, cache, token(10))
        device.park(session)
    assert device.memory().host_bytes == (512 + 2 * 10) * TOKEN_BYTES


# --- other processes


def test_another_device_restores_from_the_manifest(make_device: Make) -> None:
    one, other = make_device(disk_bytes=64 * MIB), make_device()
    script = Script()
    tensor = torch.randn(MIB)
    value, gone = keep(one, "ann", script, tensor, torch.randn(100))
    from_host = one.park("ann").manifest
    assert from_host is not None
    other.run("ann", script.program(release=(gone,)))  # known before it comes
    restored = other.restore("ann", from_host)
    assert (restored.checked_pieces, restored.copied_bytes) == (4, tensor.nbytes)
    assert torch.equal(fetch(other, "ann", script, value)[0], tensor)
    assert other.memory().unstored_bytes == {"ann": tensor.nbytes}  # the other's arena may go any time
    other.interpreter.close("ann")
    from_disk = one.demote("ann").manifest
    assert from_disk is not None
    assert from_disk != from_host
    other.restore("ann", from_disk)
    assert torch.equal(fetch(other, "ann", script, value)[0], tensor)
    assert "already" in failed(other.ask(messages.Restore(4, "ann", manifest=from_disk))).reason


def test_restore_in_another_worker_skips_released_values(make_device: Make) -> None:
    one, other = make_device(host_bytes=5 * MIB), make_device()
    ann, bob = Script(), Script()
    tensor = torch.randn(MIB // 2)
    value, gone = keep(one, "ann", ann, tensor, torch.randn(MIB // 2))
    manifest = one.park("ann").manifest
    one.run("ann", ann.program(release=(gone,)))
    keep(one, "bob", bob, torch.randn(MIB // 4 * 3))
    one.park("bob")  # where the released value was
    wrong = failed(other.ask(messages.Restore(1, "ann", manifest=manifest)))
    assert wrong.mismatch
    right = done(other.ask(messages.Restore(2, "ann", manifest=manifest, released=(gone,))))
    assert right.copied_bytes == tensor.nbytes
    assert torch.equal(fetch(other, "ann", ann, value)[0], tensor)


@pytest.mark.parametrize("manifest", [b"", b"\xc0", b"no manifest at all"])
def test_a_manifest_that_is_none(make_device: Make, manifest: bytes) -> None:
    device = make_device()
    answer = failed(device.ask(messages.Restore(1, "ann", manifest=manifest)))
    assert "manifest" in answer.reason
    assert not answer.mismatch


# --- lanes


def test_expedited_copy_overtakes_others_between_two_pieces() -> None:
    lane = Lane("test", lambda nbytes: 0.0)
    order: list[str] = []
    begun, gate, over = threading.Event(), threading.Event(), threading.Event()

    def steps(name: str, count: int = 2) -> object:
        for _ in range(count):
            order.append(name)
            if name == "first" and not begun.is_set():
                begun.set()
                gate.wait(20)
            yield 1

    def add(number: int, name: str, expedited: bool = False) -> None:
        lane.add(LaneTask(number, iter(steps(name)), lambda job, problem: finish(name), expedited))  # type: ignore[call-overload]

    def finish(name: str) -> None:
        if name == "second":
            over.set()

    add(1, "first")
    assert begun.wait(20)
    add(2, "second")
    add(3, "third")
    add(4, "urgent", expedited=True)
    assert lane.expedite(3)
    assert not lane.expedite(99)
    gate.set()
    assert over.wait(20)
    lane.stop()
    assert order == ["first", "urgent", "urgent", "third", "third", "first", "second", "second"]
