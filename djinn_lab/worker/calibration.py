"""Measure a device: what run times are predicted from (:mod:`djinn_lab.srg.curves`)."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from djinn_lab.srg.curves import DeviceCurves, fit
from djinn_lab.srg.families import VIEW, FamilyWork
from djinn_lab.worker.probes import all_probes
from djinn_lab.worker.probing import NoMemoryToMeasure, Prober
from djinn_lab.worker.program_run import NO_MEMORY


def calibration(device: torch.device) -> Iterator[DeviceCurves | None]:
    """Measure step by step, a few milliseconds each; None until the last, which has the curves. Raises
    NoMemoryToMeasure."""
    try:
        yield from _measured(device)
    except NO_MEMORY as error:
        raise NoMemoryToMeasure(str(error)) from error


def _measured(device: torch.device) -> Iterator[DeviceCurves | None]:
    prober = Prober(device)
    seconds: dict[FamilyWork, float] = {}
    first_s: dict[str, float] = {}
    for probe in all_probes(device):
        sample = prober.probe(probe.call, probe.family)
        if sample is not None:
            seconds[sample.charge] = sample.seconds
            if sample.first_s is not None:
                first_s[sample.charge.family] = sample.first_s
        yield None
    view_s, first_s[VIEW] = prober.view()
    yield DeviceCurves(view_s, fit(seconds), first_s)


def calibrate(device: torch.device) -> DeviceCurves:
    """Measure at once."""
    *_, curves = calibration(device)
    assert curves is not None
    return curves
