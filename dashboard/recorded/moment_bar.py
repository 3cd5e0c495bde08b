"""The bar above the pages of a recording: which moment is shown, and the way to another one."""

from __future__ import annotations

import time
from collections.abc import Callable

import panel as pn

from djinn_lab.dashboard.recorded.run import RecordedRun
from djinn_lab.dashboard.widgets.controls import button, control_bar, select
from djinn_lab.dashboard.widgets.panes import heading, html_pane, notice, show_html
from djinn_lab.pool.database.recording import RecordedEvents, Recording
from djinn_lab.units import counted, format_seconds


class MomentBar:
    """``moved``: called with a moment that the visitor chooses, seconds since the epoch. ``chosen``: called
    with the pool of another run."""

    def __init__(self, moved: Callable[[float], None], chosen: Callable[[str], None]) -> None:
        self._moved, self._chosen = moved, chosen
        self._run: RecordedRun | None = None
        self._at_s = 0.0
        self._filling = False
        self.slider = pn.widgets.IntSlider(
            name="Moments with events, the first at the left",
            start=0,
            end=1,
            margin=(0, 8, 8, 0),
            sizing_mode="stretch_width",
            min_width=240,
            show_value=False,
        )
        self.earlier, self.later = button("Previous event"), button("Next event")
        self.runs = select("Run of the pool", {}, width=320, visible=False)
        self._heading, self._note = html_pane(margin=(0, 0, 6, 0)), html_pane(margin=(0, 0, 8, 0))
        self._controls = pn.Column(
            self.slider,
            control_bar(self.earlier, self.later, self.runs),
            visible=False,
            sizing_mode="stretch_width",
            margin=0,
        )
        self.view = pn.Column(
            self._heading, self._note, self._controls, sizing_mode="stretch_width", margin=(0, 0, 12, 0)
        )
        self.slider.param.watch(lambda event: self._slid(), "value_throttled")
        self.runs.param.watch(lambda event: self._run_chosen(), "value")
        self.earlier.on_click(lambda event: self._step(-1))
        self.later.on_click(lambda event: self._step(1))

    def say(self, message: str, advice: str = "", tone: str = "") -> None:
        """Show what keeps the recording from being shown."""
        show_html(self._note, notice(message, advice, tone) if message else "")

    def open(self, recording: Recording, run: RecordedRun) -> None:
        """Take a run of a recording."""
        self._run = run
        self._filling = True
        self.slider.param.update(start=0, end=max(1, len(run.moments) - 1))
        labels = {_label(events): events.pool for events in reversed(recording.runs)}
        self.runs.param.update(options=labels, value=run.pool, visible=len(labels) > 1)
        self._filling = False
        self._controls.visible = run.ends_at > run.begins_at or len(labels) > 1

    def show(self, at_s: float, problem: str) -> None:
        """Say which moment the pages show, and how far the recording is whole. ``problem``: what else cannot
        be read of it, empty for nothing."""
        run = self._run
        assert run is not None
        self.say(" ".join(filter(None, (run.note, problem))))
        self._at_s = at_s
        self._filling = True
        self.slider.value = run.place_of(at_s)
        self._filling = False
        clock = f"{time.strftime('%d %b %Y %H:%M:%S', time.localtime(at_s))}.{int(at_s % 1 * 1000):03d}"
        number, after = run.place_of(at_s) + 1, format_seconds(at_s - run.begins_at)
        text = (
            f"Pool {run.pool} at {clock}, {after} after its start: moment {number:,} of {len(run.moments):,}."
        )
        show_html(self._heading, heading("A recorded pool", text))

    def _slid(self) -> None:
        """Move, unless the slider only follows a moment between two events."""
        run = self._run
        if not self._filling and run is not None and self.slider.value != run.place_of(self._at_s):
            self._moved(run.moments[self.slider.value])

    def _step(self, moments: int) -> None:
        if self._run is not None:
            self._moved(self._run.step(self._at_s, moments))

    def _run_chosen(self) -> None:
        if not self._filling and self.runs.value:
            self._chosen(self.runs.value)


def _label(events: RecordedEvents) -> str:
    began = time.strftime("%d %b %H:%M:%S", time.localtime(events.records[0].at_s))
    return f"{began} · {counted(len(events.records), 'event')} · {events.pool}"
