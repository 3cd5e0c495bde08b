"""Modes, their features, and what each of them changes in a schedule."""

from __future__ import annotations

import pytest
import torch
from programs import LAYER, Script
from test_memory_order import training_with_dropout, wide_branches
from torch.nn import functional as F
from torch_recording import Recording

from djinn_lab.config.detection import Cuda, CudaDevice, Facts, RunningPool
from djinn_lab.errors import DeviceMemoryError, OptionError
from djinn_lab.scheduler import (
    FEATURES,
    MODE_FEATURES,
    SESSION_BOUND,
    AdaptiveScheduler,
    DeviceProfile,
    Scheduler,
    create_advanced_scheduler,
    create_basic_scheduler,
    create_semantic_scheduler,
    detect_environment,
)
from djinn_lab.scheduler.features import workload_of
from djinn_lab.scheduler.profiles import profile_named
from djinn_lab.srg.curves import DeviceCurves
from djinn_lab.srg.graph import SRG
from djinn_lab.srg.program import Program

GIB = 2**30


def device(
    name: str, memory_bytes: int = GIB, flops_per_s: float = 1e9, transfer: float | None = None
) -> DeviceProfile:
    curves = DeviceCurves.of_rates(flops_per_s, 1e9, 1e-6)
    return DeviceProfile(name, "cpu", memory_bytes, curves, transfer_bytes_per_s=transfer)


def product() -> SRG:
    script = Script(0, LAYER)
    x, w = script.source((32, 32), blob="0" * 64), script.source((32, 32), "weight")
    y = script.op("aten.mm.default", x, w, shape=(32, 32))
    return SRG.from_program(script.program(keep=(y,), fetch=(y,)))


def decoding() -> SRG:
    """Attention of one new token over a cache that grows by it."""
    past, key = torch.randn(1, 2, 7, 8), torch.randn(1, 2, 1, 8)
    with Recording("decode") as recording, torch.no_grad():
        keys, values = torch.cat([past, key], -2), torch.cat([past, key], -2)
        made = F.scaled_dot_product_attention(key, keys, values)
    return SRG.from_program(recording.program(keep=(made, keys, values)))


def graph(program: Program) -> SRG:
    return SRG.from_program(program)


def lines(scheduler: AdaptiveScheduler, srg: SRG) -> str:
    return "\n".join(scheduler.create_schedule(srg).explain())


def test_basic_mode_takes_program_order_on_the_first_device_that_fits() -> None:
    devices = [device("tiny", 100), device("slow"), device("fast", flops_per_s=1e12)]
    made = create_basic_scheduler(devices=devices).create_schedule(product())
    assert made.device.device == "slow"
    assert made.order == (0,)
    assert "Mode basic: it was asked for." in made.explain()
    assert any(line.startswith("Device slow: the first listed") for line in made.explain())
    assert not any(line.startswith("Feature ") for line in made.explain())


def test_feature_placement_compares_all_devices() -> None:
    devices = [device("slow"), device("fast", flops_per_s=1e12)]
    scheduler = create_basic_scheduler(devices=devices)
    scheduler.enable_feature("placement")
    made = scheduler.create_schedule(product())
    assert made.device.device == "fast"
    assert "Feature placement: all devices are compared for latency." in made.explain()
    scheduler.enable_feature("placement", False)
    assert scheduler.create_schedule(product()).device.device == "slow"


def test_feature_reserve_passes_a_device_that_would_be_full() -> None:
    tight, roomy = device("tight", 13000), device("roomy")
    scheduler = create_basic_scheduler(devices=[tight, roomy], profile="llm_serving")
    assert scheduler.create_schedule(product()).device.device == "tight"
    assert scheduler.profile.reserve_fraction == 0
    scheduler.enable_feature("reserve")
    assert scheduler.create_schedule(product()).device.device == "roomy"
    assert scheduler.profile.reserve_fraction == 0.2


def test_a_reserve_that_no_device_keeps_does_not_refuse_the_graph() -> None:
    scheduler = create_basic_scheduler(devices=[device("tight", 13000)], profile="llm_serving")
    scheduler.enable_feature("reserve")
    assert scheduler.create_schedule(product()).device.device == "tight"


def test_a_reserve_that_no_device_keeps_leaves_the_first_that_fits() -> None:
    tight = [device("slow", 13000), device("fast", 13000, flops_per_s=1e12)]
    scheduler = create_basic_scheduler(devices=tight, profile="llm_serving")
    scheduler.enable_feature("reserve")
    assert scheduler.create_schedule(product()).device.device == "slow"


def test_a_bound_session_is_the_reason_for_its_device() -> None:
    made = create_basic_scheduler(devices=[device("a"), device("b")]).on([device("b")], SESSION_BOUND)
    assert any(
        line.startswith(f"Device b: {SESSION_BOUND}, ") for line in made.create_schedule(product()).explain()
    )


@pytest.mark.parametrize("mode", ["basic", "semantic", "advanced", "auto"])
def test_every_mode_refuses_what_no_device_can_hold(mode: str) -> None:
    scheduler = AdaptiveScheduler(mode, devices=[device("a", 100), device("b", 90)])  # type: ignore[arg-type]
    with pytest.raises(DeviceMemoryError, match="a has 100 B free"):
        scheduler.create_schedule(product())


@pytest.mark.parametrize("make", [product, decoding, lambda: graph(training_with_dropout())])
def test_feature_workload_takes_the_profile_of_the_graph(make: object) -> None:
    srg = make()  # type: ignore[operator]
    made = create_semantic_scheduler(devices=[device("one")]).create_schedule(srg)
    assert made.profile == workload_of(srg).workload
    chosen = create_semantic_scheduler(devices=[device("one")], profile="research_training")
    assert chosen.create_schedule(srg).profile == "research_training"


def test_workload_follows_from_phases() -> None:
    assert workload_of(product()).workload == "basic_inference"
    assert workload_of(decoding()).workload == "llm_serving"
    script = Script(0, LAYER)
    assert workload_of(graph(script.program())).workload == "basic_inference"


def test_feature_colocation_groups_a_cache_with_its_attention() -> None:
    srg = decoding()
    appends = [node.id for node in srg.nodes if node.op.startswith("aten.cat")]
    attention = next(node.id for node in srg.nodes if "attention" in node.op)
    apart = create_basic_scheduler(devices=[device("one")]).create_schedule(srg)
    assert not any(attention in group for group in apart.groups)
    made = create_semantic_scheduler(devices=[device("one")]).create_schedule(srg)
    assert any({*appends, attention} <= set(group) for group in made.groups)
    assert any("Feature colocation: 2 appended KV caches" in line for line in made.explain())
    assert "Feature colocation: no KV cache grows in this graph." in lines(
        create_semantic_scheduler(devices=[device("one")]), product()
    )


def test_advanced_mode_lowers_the_peak_and_says_by_how_much() -> None:
    srg = graph(wide_branches())
    semantic = create_semantic_scheduler(devices=[device("one")]).create_schedule(srg)
    advanced = create_advanced_scheduler(devices=[device("one")]).create_schedule(srg)
    assert advanced.memory.peak_bytes < semantic.memory.peak_bytes
    assert semantic.order == tuple(range(len(srg.nodes)))
    assert any(line.startswith("Feature order_for_memory: another order") for line in advanced.explain())
    assert "Feature order_for_memory: no order was found with a peak below 12.0 KiB." in lines(
        create_advanced_scheduler(devices=[device("one")]), product()
    )


def test_a_lower_peak_makes_a_graph_fit_that_did_not() -> None:
    srg = graph(wide_branches())
    lowest = create_advanced_scheduler(devices=[device("one")]).create_schedule(srg).memory.peak_bytes
    with pytest.raises(DeviceMemoryError):
        create_semantic_scheduler(devices=[device("one", lowest)]).create_schedule(srg)
    assert (
        create_advanced_scheduler(devices=[device("one", lowest)]).create_schedule(srg).device.device == "one"
    )


def test_auto_mode_chooses_by_devices_memory_and_workload() -> None:
    one, two = [device("one")], [device("one"), device("two")]
    tight = [device("tight", 20000)]
    for devices, srg, reason in (
        (one, product(), "Mode basic: there is one device, its memory is ample"),
        (two, product(), "Mode semantic: there are 2 devices to choose from"),
        (one, decoding(), "Mode semantic: the graph is llm_serving"),
        (tight, product(), "Mode advanced: the peak of 12.0 KiB is at least half of the 19.5 KiB"),
    ):
        assert lines(AdaptiveScheduler(devices=devices), srg).startswith(reason)


def test_a_switched_feature_counts_in_every_mode() -> None:
    scheduler = AdaptiveScheduler(devices=[device("one")])
    scheduler.enable_feature("order_for_memory")
    scheduler.enable_feature("reserve", False)
    assert "Feature order_for_memory" in lines(scheduler, product())
    assert "reserve" not in scheduler.features
    assert "Switched: order_for_memory on, reserve off." in scheduler.reasons


def test_unknown_names_are_refused_with_the_nearest() -> None:
    scheduler = create_basic_scheduler(devices=[device("one")])
    with pytest.raises(OptionError, match=r"'order_for_memroy' is no feature .*'order_for_memory'\?"):
        scheduler.enable_feature("order_for_memroy")
    with pytest.raises(OptionError, match="'off' switches no feature"):
        scheduler.enable_feature("order_for_memory", "off")  # type: ignore[arg-type]
    assert scheduler.features == ()
    with pytest.raises(OptionError, match=r"'advance' is no mode .*did you mean 'advanced'\?"):
        AdaptiveScheduler("advance")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="did you mean 'llm_serving'"):
        AdaptiveScheduler(profile="llm_servin", devices=[device("one")])


def test_modes_are_sets_of_features_that_exist() -> None:
    for mode, names in MODE_FEATURES.items():
        assert names <= FEATURES.keys()
        assert set(AdaptiveScheduler(mode, devices=[device("one")]).features) == names
    assert MODE_FEATURES["basic"] < MODE_FEATURES["semantic"] < MODE_FEATURES["advanced"]


def test_throughput_counts_the_slower_of_transfers_and_ops() -> None:
    """``near`` takes less in all; ``far`` is done with its longer part sooner."""
    near = device("near", flops_per_s=6.5e6, transfer=1e9)
    far = device("far", flops_per_s=1.1e7, transfer=1.4e6)
    assert create_semantic_scheduler(devices=[near, far]).create_schedule(product()).device.device == "near"
    profile = profile_named("basic_inference", objective="throughput")
    made = create_semantic_scheduler(devices=[near, far], profile=profile).create_schedule(product())
    assert made.device.device == "far"
    assert any("Device far: most such graphs in a time, one every" in line for line in made.explain())


def facts(cuda: Cuda) -> Facts:
    return Facts(4.0, 8 * GIB, "", cuda, None, (), RunningPool("absent"))


def test_the_environment_is_the_callers_then_the_pools_then_the_machines() -> None:
    class Connected:
        def device_profiles(self, device_name: str | None) -> list[DeviceProfile]:
            return [device("pool:0", transfer=2.0 * GIB)]

    given = detect_environment(Connected(), [device("mine")])
    assert (given.devices[0].device, given.connected) == ("mine", False)
    pool = detect_environment(Connected())
    assert (pool.devices[0].device, pool.connected) == ("pool:0", True)
    assert "Link: 2.0 GiB/s to pool:0." in pool.describe()
    found = Cuda("found", (CudaDevice("H", 80 * GIB, 60 * GIB), CudaDevice("H", 80 * GIB, 79 * GIB)))
    cuda = detect_environment(facts=facts(found))
    assert [one.device for one in cuda.devices] == ["cuda:0", "cuda:1"]
    assert cuda.free_bytes == 79 * GIB
    plain = detect_environment(facts=facts(Cuda("absent")))
    assert [(one.device, one.memory_bytes) for one in plain.devices] == [("cpu:0", 8 * GIB)]
    assert plain.describe()[0] == "No pool is connected; this machine has 1 device: cpu:0 with 8.0 GiB."
    assert "Default speeds count for cpu:0." in plain.describe()[1]


def test_what_a_notebook_shows_of_a_scheduler_is_one_line() -> None:
    device = DeviceProfile.default("cpu")
    scheduler = AdaptiveScheduler("semantic", devices=[device])
    scheduler.enable_feature("colocation", False)
    assert repr(device) == "<DeviceProfile cpu:0: 4.0 GiB of 4.0 GiB free, not measured>"
    assert repr(scheduler).startswith("<AdaptiveScheduler in mode semantic for cpu:0: ")
    assert "colocation" not in repr(scheduler)
    assert repr(Scheduler(devices=[device])) == "<Scheduler of profile basic_inference for cpu:0>"
