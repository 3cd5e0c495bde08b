"""Devices for operators: cordon, drain, uncordon, calibrate, describe."""

from __future__ import annotations

from djinn_lab.dashboard.admin.section import stack, table
from djinn_lab.dashboard.board import Board
from djinn_lab.dashboard.devices.actions import DeviceActions
from djinn_lab.dashboard.devices.tables import DEVICE_COLUMNS, device_rows, devices_sentence
from djinn_lab.dashboard.hub import Snapshot
from djinn_lab.dashboard.widgets.changes import Changes
from djinn_lab.dashboard.widgets.controls import button, text_input
from djinn_lab.dashboard.widgets.forms import Form
from djinn_lab.dashboard.widgets.panes import heading, html_pane, show_html
from djinn_lab.errors import DjinnError, OptionError
from djinn_lab.protocol.rest.status import DeviceView

SHOWN = ("device", "state", "cell", "user", "pending", "worker", "labels")
HINT = (
    "Cells ask for labels with --target; only cells with --tolerate start on a device with a taint. Cheaper "
    "devices are used first."
)


class DevicesSection:
    """Act on the chosen device, and describe it."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._snapshot = Snapshot()
        self.devices = table(
            [column for column in DEVICE_COLUMNS if column["key"] in SHOWN],
            "Devices",
            empty="The pool has no devices yet; they are starting",
        )
        self.actions = DeviceActions(board, "admin")
        self.form = Form(
            {
                "labels": text_input("Labels", placeholder="gpu=h200, site=lab", width=240),
                "taints": text_input("Taints", placeholder="vision", width=180),
                "price": text_input("Price of an hour", placeholder="0", width=130),
                "watts": text_input("Watts when busy", placeholder="unknown", width=130),
            }
        )
        self.describe = button("Describe", color="primary")
        self.changes = Changes(board.background, "describe-device")
        self._heading = html_pane(margin=(0, 0, 6, 0))
        self._form_heading = html_pane(margin=(14, 0, 6, 0))
        self._description = stack(
            self._form_heading, self.form.view, self.describe, self.changes.view, visible=False
        )
        self._choose = html_pane("<p class='muted'>Choose a device.</p>", margin=(8, 0, 0, 0))
        self.view = stack(self._heading, self.devices, self._choose, self.actions.view, self._description)
        self.devices.param.watch(lambda event: self._chosen(), "selected")
        self.describe.on_click(lambda event: self.describe_device())

    def update(self, snapshot: Snapshot) -> None:
        """Bring the section up to the snapshot; the form stays as it is."""
        self._snapshot = snapshot
        self._board.hub.want_queue()
        devices = () if snapshot.status is None else snapshot.status.devices
        show_html(self._heading, heading("Devices", devices_sentence(devices)))
        self.devices.show(device_rows(snapshot))
        device = self._device()
        self.actions.show(device, snapshot)
        self._description.visible, self._choose.visible = device is not None, device is None
        if device is not None:
            show_html(self._form_heading, heading(f"Description of {device.device}", HINT))

    def describe_device(self) -> None:
        """Replace the description of the chosen device by what was typed."""
        device = self._device()
        if device is None:
            return
        form = self.form
        form.clear_notes()
        try:
            price, watts = form.number("price"), form.number("watts")
        except OptionError:
            return
        labels, taints = form.parts("labels"), form.parts("taints")
        hub = self._board.hub
        self.changes.run(
            f"Describing {device.device}.",
            lambda: hub.reader().describe_device(device.device, labels, taints, price or 0.0, watts),
            lambda answer: description_sentence(device.device, labels, taints, price or 0.0, watts),
            self._refused,
        )

    def _refused(self, error: DjinnError) -> None:
        """Show the pool's words beside the field that they are about."""
        signs = {"taints": "is no taint", "price": "a price of", "watts": "watts"}
        field = next((name for name, sign in signs.items() if sign in error.message), "labels")
        self.form.refused(field, error.message)

    def _device(self) -> DeviceView | None:
        devices = () if self._snapshot.status is None else self._snapshot.status.devices
        return next((one for one in devices if one.device == self.devices.selected), None)

    def _chosen(self) -> None:
        device = self._device()
        if device is not None:
            self.changes.clear()
            self.form.clear_notes()
            given = [label for label in device.labels if label not in device.own_labels]
            self.form.fields["labels"].value = ", ".join(given)
            self.form.fields["taints"].value = ", ".join(device.taints)
            self.form.fields["price"].value = f"{device.price:g}" if device.price else ""
            self.form.fields["watts"].value = "" if device.watts is None else f"{device.watts:g}"
        self.update(self._snapshot)


def description_sentence(
    device: str, labels: list[str], taints: list[str], price: float, watts: float | None
) -> str:
    """Say how a device is described now."""
    parts = [
        f"labels {', '.join(labels)}" if labels else "no labels",
        f"taints {', '.join(taints)}" if taints else "no taints",
        f"{price:g} an hour" if price else "no price",
        "unknown power" if watts is None else f"{watts:g} W when busy",
    ]
    return f"{device} has {'; '.join(parts)}."
