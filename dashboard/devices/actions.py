"""Cordon, drain, uncordon and calibrate one device, for operators."""

from __future__ import annotations

import panel as pn

from djinn_lab.dashboard.board import Board
from djinn_lab.dashboard.devices.tables import running_on
from djinn_lab.dashboard.hub import Snapshot
from djinn_lab.dashboard.permissions import may
from djinn_lab.dashboard.widgets.changes import Changes
from djinn_lab.dashboard.widgets.controls import button
from djinn_lab.pool.authentication import Role
from djinn_lab.protocol.rest.status import DeviceView
from djinn_lab.units import counted


class DeviceActions:
    """Buttons for one device, hidden from visitors who may not use them. ``page``: on which they stand."""

    def __init__(self, board: Board, page: str) -> None:
        self._board = board
        self._device: DeviceView | None = None
        self._devices: tuple[DeviceView, ...] = ()
        self.cordon = button("Cordon")
        self.drain = button("Drain", color="danger")
        self.uncordon = button("Uncordon")
        self.calibrate = button("Calibrate")
        self.changes = Changes(board.background, f"device-{page}")
        self._bar = self.changes.bar(self.cordon, self.drain, self.uncordon, self.calibrate)
        self.view = pn.Column(
            self._bar, self.changes.view, sizing_mode="stretch_width", margin=(8, 0, 0, 0), visible=False
        )
        self.cordon.on_click(lambda event: self.ask_cordon(drain=False))
        self.drain.on_click(lambda event: self.ask_cordon(drain=True))
        self.uncordon.on_click(lambda event: self.uncordon_device())
        self.calibrate.on_click(lambda event: self.calibrate_device())

    def show(self, device: DeviceView | None, snapshot: Snapshot) -> None:
        """Offer what can be done with a device; None: no device is chosen."""
        if device is None or self._device is None or device.device != self._device.device:
            self.changes.clear()
        self._device = device
        self._devices = () if snapshot.status is None else snapshot.status.devices
        self.view.visible = device is not None and may(self._board, snapshot, Role.OPERATOR)
        if device is None:
            return
        for action, words in (
            (self.cordon, "Cordon"),
            (self.drain, "Drain"),
            (self.uncordon, "Uncordon"),
            (self.calibrate, "Calibrate"),
        ):
            action.label = f"{words} {device.device}"
        self.cordon.visible = not device.cordoned
        self.uncordon.visible = device.cordoned
        self.drain.disabled = device.cordoned and device.job is None

    def ask_cordon(self, drain: bool) -> None:
        """Cordon the device; first ask where cells are preempted, or no other device serves."""
        device = self._device
        if device is None:
            return
        last = all(one.cordoned or one.device == device.device for one in self._devices)
        if not drain and not last:
            self.cordon_device(device.device, drain)
            return
        self.changes.ask(
            cordon_question(device, drain, last),
            f"{'drain' if drain else 'cordon'} {device.device}",
            lambda: self.cordon_device(device.device, drain),
        )

    def cordon_device(self, device: str, drain: bool) -> None:
        """Cordon or drain a device, and say what that does to running cells and sessions."""

        def work() -> str:
            reader = self._board.hub.reader()
            running = len(running_on(reader.queue(), device))
            reader.cordon(device, drain)
            sessions = sum(session.device == device for session in reader.sessions())
            return cordoned_sentence(device, drain, running, sessions)

        self.changes.run(f"{'Draining' if drain else 'Cordoning'} {device}.", work, str)

    def uncordon_device(self) -> None:
        if self._device is not None:
            name = self._device.device
            self.changes.run(
                f"Uncordoning {name}.",
                lambda: self._board.hub.reader().uncordon(name),
                lambda answer: f"{name} serves again.",
            )

    def calibrate_device(self) -> None:
        if self._device is not None:
            name = self._device.device
            self.changes.run(
                f"Asking for a measurement of {name}.",
                lambda: self._board.hub.reader().calibrate(name),
                lambda answer: f"{name} is measured again as soon as it is idle.",
            )


def cordon_question(device: DeviceView, drain: bool, last: bool) -> str:
    """Say what cordoning a device leads to. ``last``: no other device serves."""
    name = device.device
    parts = []
    if drain and device.job is not None:
        where = "it waits until a device serves again" if last else "it resumes on another device"
        parts.append(f"The cell that runs on {name} is preempted after its current op, and {where}.")
    parts.append(f"No cell starts on {name} until it is uncordoned.")
    if last:
        parts.append("No other device serves: all pending cells wait until then.")
    return " ".join(parts)


def cordoned_sentence(device: str, drain: bool, running: int, sessions: int) -> str:
    """Say what was done, and to how many cells and sessions."""
    state = "drained" if drain else "cordoned"
    cells = counted(running, "running cell")
    if drain:
        leaving = f"{cells} preempted after the current op"
    else:
        leaving = f"{cells} {'ends' if running == 1 else 'end'} there first (Drain preempts)"
    return (
        f"{device} is {state}: no cell starts there. {leaving}. {counted(sessions, 'session')} bound to it "
        f"{'moves' if sessions == 1 else 'move'} with the next cell, or part of a cell."
    )
