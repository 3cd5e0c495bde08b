"""Devices: a row for each, and for the chosen one everything that the pool knows of it; hosts, where there
are several."""

from __future__ import annotations

from typing import Any

import panel as pn

from djinn_lab.dashboard.board import Board
from djinn_lab.dashboard.devices.actions import DeviceActions
from djinn_lab.dashboard.devices.details import details_html
from djinn_lab.dashboard.devices.tables import (
    DEVICE_COLUMNS,
    HOST_COLUMNS,
    cell_names,
    device_rows,
    devices_sentence,
    host_rows,
    hosts_heading,
    waiting_for,
)
from djinn_lab.dashboard.hub import Snapshot
from djinn_lab.dashboard.permissions import LOG_IN, refusal
from djinn_lab.dashboard.queueing.tables import WAITING_COLUMNS, waiting_rows
from djinn_lab.dashboard.widgets.components import LiveTable
from djinn_lab.dashboard.widgets.panes import heading, html_pane, notice, show_html, show_known
from djinn_lab.pool.authentication import Role
from djinn_lab.protocol.rest.status import DeviceView

WAITING_SHOWN_MAX = 20


class DevicesPage:
    """State: the address holds the chosen device. Without one the first device is shown."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._snapshot = Snapshot()
        self.devices = LiveTable(
            columns=DEVICE_COLUMNS,
            label="Devices",
            empty="The pool has no devices yet; they are starting",
            selectable=True,
            toggle=False,
            sizing_mode="stretch_width",
        )
        self.hosts = LiveTable(
            columns=HOST_COLUMNS, label="Hosts", empty="", toggle=False, sizing_mode="stretch_width"
        )
        self.actions = DeviceActions(board, "devices")
        self.details = html_pane(margin=(0, 0, 12, 0))
        self.waiting = LiveTable(
            columns=WAITING_COLUMNS,
            label="Cells that wait for the device",
            empty="No cell waits for this device",
            sizing_mode="stretch_width",
        )
        full: dict[str, Any] = {"sizing_mode": "stretch_width", "margin": 0}
        self._heading = html_pane(margin=(0, 0, 8, 0))
        self._warnings = html_pane()
        self._chosen_heading = html_pane(margin=(18, 0, 6, 0))
        self._waiting_heading = html_pane(margin=(8, 0, 6, 0))
        self._log_in = html_pane(margin=(8, 0, 0, 0))
        self._chosen = pn.Column(
            self._chosen_heading,
            self.actions.view,
            self._log_in,
            self.details,
            self._waiting_heading,
            self.waiting,
            **full,
        )
        self._hosts_heading = html_pane(margin=(0, 0, 8, 0))
        self._hosts = pn.Column(self._hosts_heading, self.hosts, visible=False, **full)
        self._live = pn.Column(
            self._hosts, self._warnings, self._heading, self.devices, self._chosen, visible=False, **full
        )
        self._missing = html_pane()
        self.view = pn.Column(self._missing, self._live, **full)
        self.devices.param.watch(lambda event: self._device_chosen(), "selected")

    def enter(self) -> None:
        """Called when the page is shown: follow the address."""
        self.devices.selected = self._board.route.get("device")

    def update(self, snapshot: Snapshot) -> None:
        """Bring the page up to the snapshot, sending only what changed."""
        self._snapshot = snapshot
        self._board.hub.want_queue()
        self._board.hub.want_costs()
        if not show_known(self._live, self._missing, snapshot, snapshot.status):
            return
        assert snapshot.status is not None
        self._hosts.visible = bool(snapshot.status.hosts)
        if self._hosts.visible:
            show_html(self._hosts_heading, hosts_heading(snapshot.status))
            self.hosts.show(host_rows(snapshot))
        show_html(self._warnings, "".join(notice(warning) for warning in snapshot.status.warnings))
        show_html(self._heading, heading("Devices", devices_sentence(snapshot.status.devices)))
        self.devices.show(device_rows(snapshot))
        self._show_chosen(snapshot)

    def _show_chosen(self, snapshot: Snapshot) -> None:
        assert snapshot.status is not None
        devices = snapshot.status.devices
        wanted = self.devices.selected
        device = next((one for one in devices if one.device == wanted), None)
        if device is None and not wanted and devices:
            device = devices[0]
        self.actions.show(device, snapshot)
        not_proven = refusal(self._board, snapshot, Role.OPERATOR, "this") == LOG_IN
        show_html(self._log_in, notice(LOG_IN) if not_proven and device is not None else "")
        self.waiting.visible = device is not None
        if device is None:
            there = ", ".join(one.device for one in devices) or "none"
            gone = notice(f"The pool has no device {wanted}.", f"Its devices: {there}.")
            show_html(self._chosen_heading, gone if wanted else "")
            show_html(self.details, "")
            show_html(self._waiting_heading, "")
            return
        show_html(self._chosen_heading, heading(device.device, f"{device.name or device.kind}"))
        show_html(self.details, details_html(device, snapshot))
        self._show_waiting(device, snapshot)

    def _show_waiting(self, device: DeviceView, snapshot: Snapshot) -> None:
        queue = snapshot.queue
        self.waiting.visible = queue is not None
        if queue is None:
            show_html(self._waiting_heading, heading(f"Pending on {device.device}", "Asking the pool."))
            return
        names = cell_names(snapshot.jobs, snapshot.notebooks_by_session())
        waiting = waiting_for(queue, device.device)
        rows = waiting_rows(queue, names)
        chosen = {job.job for job in waiting[:WAITING_SHOWN_MAX]}
        note = f"The first {WAITING_SHOWN_MAX} of {len(waiting)}" if len(waiting) > WAITING_SHOWN_MAX else ""
        self.waiting.show([row for row in rows if row["id"] in chosen], note)
        words = "Cells bound to it, and cells of new sessions, which begin on any device."
        show_html(self._waiting_heading, heading(f"Pending on {device.device}", words))

    def _device_chosen(self) -> None:
        self._board.route.update(device=self.devices.selected)
        if self._snapshot.status is not None:
            self._show_chosen(self._snapshot)
