"""Sentences on a pool's cost model, as the command line and the dashboard show them."""

from __future__ import annotations

from collections.abc import Iterator

from djinn_lab.protocol.rest.costs import CostView, DeviceCosts, EstimatorView
from djinn_lab.units import counted, format_bytes, format_seconds, listed

ESTIMATOR_S_MAX = 0.001
"""A cost estimator that takes longer for an answer delays what else the pool has to do."""


def spread_sentence(view: CostView) -> str:
    """Say how far predictions were off, by what they came from."""
    return (
        f"Nine of ten cells end within {view.runs_spread:.2f} times their prediction where they ran "
        f"before, within {view.graph_spread:.2f} times where it comes from their graph."
    )


def estimator_sentences(one: EstimatorView) -> Iterator[str]:
    """Say what an installed estimator answered, how many answers were refused, and whether it is too slow."""
    subject = f"Cost estimator {one.name} of {one.package}"
    if one.mean_s is None:
        yield f"{subject}: not asked yet."
        return
    unknown = one.asked - one.predicted - one.refused
    yield (
        f"{subject}: asked {counted(one.asked, 'time')}, {format_seconds(one.mean_s)} each. It predicted "
        f"{one.predicted} and did not know {unknown}."
    )
    if one.refused:
        yield (
            f"Refused {counted(one.refused, 'time')}, and predicted by the built-in cost model. "
            f"The last time {one.last_refusal}."
        )
    if one.mean_s > ESTIMATOR_S_MAX:
        yield (
            f"It takes longer than {format_seconds(ESTIMATOR_S_MAX)}, and the pool does nothing else "
            "meanwhile: make it faster, or restart the pool without it."
        )


def measuring_words(device: DeviceCosts) -> str:
    """Say when a device that has no curves will have them."""
    return "is being measured" if device.measuring else "is measured when it has been idle for a moment"


def device_sentence(device: DeviceCosts) -> str:
    """Say what a device was measured to do."""
    if device.flops_per_s is None or device.memory_bytes_per_s is None or device.op_s is None:
        return f"{device.device} {measuring_words(device)}."
    again = ", to be measured again" if device.drift == "asked" or device.measuring else ""
    return (
        f"{device.device}: {device.flops_per_s / 1e9:.0f} GFLOP/s, "
        f"{format_bytes(int(device.memory_bytes_per_s))}/s, {format_seconds(device.op_s)} for an op{again}."
    )


def unpriced_sentence(view: CostView) -> str:
    """Name the ops that had no price."""
    if not view.unpriced and not view.runs:
        return "No run has been compared yet."
    if not view.unpriced:
        return "Every op of the runs so far had a price."
    named = listed([f"{one.op} ({counted(one.runs, 'run')})" for one in view.unpriced])
    return f"No curve prices {named}: the bytes that they move count instead."
