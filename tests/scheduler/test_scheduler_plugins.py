"""Cost estimators and optimization strategies of other packages, in schedules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from drawn_programs import Step, build, steps
from example_package import EXAMPLE, import_from, install, write_package
from hypothesis import given
from programs import Script

from djinn_lab.errors import OptionError
from djinn_lab.scheduler import GraphCostEstimator, Scheduler, create_scheduler_for_workload
from djinn_lab.scheduler.costs import NodeEstimate
from djinn_lab.scheduler.ordering import check_order
from djinn_lab.srg.graph import SRG


class Fixed:
    """The same answer for every node."""

    def __init__(self, answer: object) -> None:
        self.answer: Any = answer

    def estimate(self, node: object, device: object) -> Any:
        return self.answer


def graph() -> SRG:
    """Allocates two values long before they are read."""
    script = Script()
    x = script.source((64, 64))
    early, late = (script.op("aten.zeros_like.default", x) for _ in range(2))
    y = script.op("aten.relu.default", x)
    y = script.op("aten.relu.default", y)
    y = script.op("aten.add.Tensor", y, early)
    y = script.op("aten.add.Tensor", y, late)
    return SRG.from_program(script.program(keep=(y,)))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("plugins")
    group = "djinn_lab.strategies"
    nameless = write_package(place, "nameless", "class Nameless: ...\n", group, {"nameless": "Nameless"})
    return install(place, EXAMPLE, nameless)


@pytest.fixture(scope="module")
def late_allocation(site: Path) -> Scheduler:
    """Of a scheduler that was given the name alone."""
    with pytest.MonkeyPatch.context() as patch:
        import_from(patch, site)
        return Scheduler(strategies=("late-allocation",))


def test_set_cost_model_changes_the_next_schedule() -> None:
    scheduler, srg = Scheduler(), graph()
    usual = scheduler.create_schedule(srg).predicted_s
    scheduler.set_cost_model(Fixed(NodeEstimate(2.0, "memory")))
    assert scheduler.create_schedule(srg).predicted_s >= 2.0 * len(srg.nodes)
    scheduler.set_cost_model(GraphCostEstimator())
    assert scheduler.create_schedule(srg).predicted_s == usual


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (NodeEstimate(float("nan"), "memory"), "nan seconds"),
        (NodeEstimate(float("inf"), "memory"), "inf seconds"),
        (NodeEstimate(-1.0, "memory"), "-1 seconds"),
        (NodeEstimate(1e12, "memory"), "1e\\+12 seconds, above"),
        (NodeEstimate(1.0, "fixed"), "a time bound by 'fixed', not by compute, memory, overhead"),  # type: ignore[arg-type]
        (NodeEstimate("soon", "memory"), "type str instead of seconds"),  # type: ignore[arg-type]
        (1.0, "type float instead of a NodeEstimate"),
        (None, "type NoneType instead of a NodeEstimate"),
    ],
)
def test_estimate_that_is_no_time_is_an_error_with_the_node(answer: object, found: str) -> None:
    scheduler = Scheduler()
    scheduler.set_cost_model(Fixed(answer))
    where = "for node 0 \\(aten.zeros_like.default\\) on cpu:0"
    with pytest.raises(OptionError, match=f"cost estimator Fixed returned .*{found}.* {where}"):
        scheduler.create_schedule(graph())


@pytest.mark.parametrize("estimator", ["convolution-overhead", 3, Scheduler])
def test_object_without_estimate_is_no_cost_model(estimator: Any) -> None:
    scheduler = Scheduler()
    before = scheduler.cost_estimator
    with pytest.raises(OptionError, match="no method estimate"):
        scheduler.set_cost_model(estimator)
    assert scheduler.cost_estimator is before
    with pytest.raises(OptionError, match="no method estimate"):
        Scheduler(estimator)


def test_installed_strategy_is_found_by_name_and_explained(late_allocation: Scheduler) -> None:
    usual, made = Scheduler().create_schedule(graph()), late_allocation.create_schedule(graph())
    assert made.memory.peak_bytes < usual.memory.peak_bytes
    assert any("late-allocation" in sentence for sentence in made.explain())


@given(steps)
def test_example_strategy_keeps_the_results(late_allocation: Scheduler, plan: list[Step]) -> None:
    srg = SRG.from_program(build(plan))
    check_order(srg, late_allocation.create_schedule(srg).order)


def test_strategy_that_cannot_be_used_is_refused(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import_from(monkeypatch, site)
    with pytest.raises(
        OptionError, match=r"no optimization strategy 'late'.*\nInstalled packages offer: late-"
    ):
        create_scheduler_for_workload("llm_serving", strategies=("late",))
    with pytest.raises(OptionError, match=r"Write strategies=\('late-allocation',\)"):
        Scheduler(strategies="late-allocation")
    with pytest.raises(OptionError, match="is no optimization strategy"):
        Scheduler(strategies=("nameless",))


def test_what_is_no_graph_or_device_is_refused_with_advice() -> None:
    with pytest.raises(OptionError, match="of type NoneType cannot be scheduled"):
        Scheduler().create_schedule(None)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="'cpu:0' is no DeviceProfile"):
        Scheduler(devices=["cpu:0"])  # type: ignore[list-item]
    with pytest.raises(OptionError, match="there are no devices to schedule for"):
        Scheduler(devices=[])
