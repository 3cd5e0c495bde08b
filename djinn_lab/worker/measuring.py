"""Measures a worker's device between what else it runs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import torch

from djinn_lab.protocol.worker import DeviceMeasured, DeviceNotMeasured
from djinn_lab.srg.curves import DeviceCurves
from djinn_lab.units import format_bytes
from djinn_lab.worker.accelerator.device import free_bytes, is_accelerator
from djinn_lab.worker.calibration import calibration
from djinn_lab.worker.probing import NoMemoryToMeasure

MEASURED_IN_BYTES = 512 * 2**20
"""What measuring an accelerator takes at most. No session is to miss it: it is of what no process has."""

log = logging.getLogger(__name__)


class Measuring:
    """Steps of a few milliseconds each, by one thread; others may end it."""

    def __init__(
        self, device: torch.device, send: Callable[[DeviceMeasured | DeviceNotMeasured], None]
    ) -> None:
        self._device = device
        self._send = send
        self._steps: Iterator[DeviceCurves | None] | None = None

    @property
    def under_way(self) -> bool:
        return self._steps is not None

    @property
    def beside_bytes(self) -> int:
        """What it may take of an accelerator, beside what sessions have there."""
        return MEASURED_IN_BYTES if self.under_way and is_accelerator(self._device) else 0

    def begin(self) -> None:
        if is_accelerator(self._device) and free_bytes(self._device) < MEASURED_IN_BYTES:
            self._give_up(f"less than {format_bytes(MEASURED_IN_BYTES)} of it are free")
        else:
            self._steps = calibration(self._device)

    def begin_anew(self) -> None:
        """Give up the tensors of a measurement that is under way; it begins again when nothing else runs."""
        if self.under_way:
            self._steps = calibration(self._device)

    def stop(self, why: str) -> None:
        """End one that is under way, from any thread. Its tensors are gone after its step."""
        if self.under_way:
            self._give_up(why)

    def step(self) -> bool:
        """Do one step of what is under way; return whether it ended by it."""
        steps = self._steps
        if steps is None:
            return False
        try:
            curves = next(steps)
        except NoMemoryToMeasure as error:
            if self._steps is steps:
                self._give_up(f"it has no memory beside its sessions: {error}")
            return True
        if curves is not None and self._steps is steps:
            self._steps = None
            self._send(DeviceMeasured(curves))
        return self._steps is None

    def _give_up(self, why: str) -> None:
        self._steps = None
        log.warning("the device is not measured now: %s", why)
        self._send(DeviceNotMeasured(why))
