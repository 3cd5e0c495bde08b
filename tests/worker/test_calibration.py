"""A device measures itself."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from programs import Script

from djinn_lab.protocol.worker import DeviceMeasured, FromWorker, encode
from djinn_lab.protocol.worker import decode_from_worker as decode
from djinn_lab.srg.costs import work_of
from djinn_lab.srg.curves import DeviceCurves
from djinn_lab.srg.families import VIEW
from djinn_lab.srg.family_table import FAMILY_OF
from djinn_lab.worker.calibration import calibrate
from djinn_lab.worker.interpreter import Interpreter
from djinn_lab.worker.outcome import StopSignal
from djinn_lab.worker.probing import Prober

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def measured() -> DeviceCurves:
    torch.set_num_threads(1)
    return calibrate(CPU)


def test_every_family_of_ops_is_measured(measured: DeviceCurves) -> None:
    """One without a curve would be priced as an addition of as many bytes."""
    known = {name.partition("/")[0] for name in measured.families}
    assert set(FAMILY_OF.values()) <= known
    assert known - {VIEW} <= set(measured.first_s)


def test_a_measurement_survives_the_way_to_the_pool(measured: DeviceCurves) -> None:
    message: FromWorker = decode(encode(DeviceMeasured(measured)))
    assert message == DeviceMeasured(measured)


def test_a_large_product_costs_more_than_a_small_one_and_about_what_it_takes(
    measured: DeviceCurves, tmp_path: Path
) -> None:
    """Within a factor of ten, however busy the machine is: a wrong unit would be off by more."""
    seconds = {}
    for side in (32, 700):
        script = Script()
        value = script.load(torch.eye(side))
        for _ in range(4):
            value = script.op("aten.mm.default", value, value)
        program = script.program(fetch=(value,))
        seconds[side] = work_of(program).seconds(measured)
    interpreter = Interpreter(CPU, 2**30, tmp_path)
    outcomes = [
        interpreter.run("a", encode(program), {}, StopSignal(), lambda done, total: None) for _ in range(5)
    ]
    assert all(outcome.failure is None for outcome in outcomes)
    assert seconds[32] < seconds[700]
    quickest_s = min(outcome.run_s for outcome in outcomes)  # the others met a busy machine
    assert 0.1 < seconds[700] / quickest_s < 10


def test_a_probe_charges_what_a_program_would() -> None:
    x = torch.ones(128, 64)
    sample = Prober(CPU).probe(lambda: torch.tanh(x.t()))
    assert sample is not None
    assert (sample.charge.family, sample.charge.work) == ("hyperbolic", 128 * 64)
    assert sample.seconds > 0
