"""Announce a cell before it comes, when its user types or executes something.

The pool receives ``SOON`` and begins to restore what it parked. That happens from a thread of its own, so
that no cell ever waits for it; it never opens a connection and never starts a pool.

Typing is noticed where the front end is JupyterLab. There is no extension of JupyterLab to install: a text
widget that is not displayed is the way to the kernel, and a script beside it, which runs where outputs may
run scripts, writes the time into it when a key is pressed in an editor of the notebook. Elsewhere (VS Code,
nbclient, saved notebooks) neither does anything.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

from IPython.display import display

from djinn_lab.client.rest import PoolClient
from djinn_lab.client.session import Session
from djinn_lab.errors import DjinnError

EVERY_S = 3.0
"""Not more often than this: a signal counts for longer."""
log = logging.getLogger(__name__)
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"

SCRIPT = """
(() => {
  const EVERY_MS = 4000, LOOK_MS = 250, LOOKS_MAX = 1200;
  let input = null, sent = 0, looks = 0;
  function changes(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return false;
    if (event.key === "Enter") return !event.shiftKey;
    return event.key.length === 1 || ["Backspace", "Delete", "Tab"].includes(event.key);
  }
  function pressed(event) {
    const now = Date.now();
    if (now - sent < EVERY_MS || !changes(event) || !event.target.closest(".jp-InputArea-editor")) return;
    sent = now;
    input.value = String(now);
    input.dispatchEvent(new Event("input", { bubbles: true }));
  }
  function look() {
    const notebook = element.closest(".jp-Notebook");
    input = document.querySelector(".MARK input");
    if (notebook && input) {
      if (notebook.djinnTyping) notebook.removeEventListener("keydown", notebook.djinnTyping, true);
      notebook.djinnTyping = pressed;
      notebook.addEventListener("keydown", pressed, true);
    } else if (looks++ < LOOKS_MAX) {
      setTimeout(look, LOOK_MS);
    }
  }
  look();
})();
"""
"""Writes the time into the hidden text widget of class MARK when a key changes a cell of this notebook."""


class Anticipation:
    """One per notebook. Its thread begins with the first announcement and lasts as long as the process."""

    def __init__(self) -> None:
        self._sent_s = float("-inf")
        self._waiting: queue.SimpleQueue[tuple[PoolClient, str]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def soon(self, session: Session) -> bool:
        """Announce that the session will compute in a moment; returns at once. False when nothing is sent: it
        was announced just now, or there is no connection."""
        now_s = time.monotonic()
        if now_s - self._sent_s < EVERY_S or not session.connected:
            return False
        self._sent_s = now_s
        if self._thread is None:
            self._thread = threading.Thread(target=self._send, name="djinn-anticipation", daemon=True)
            self._thread.start()
        self._waiting.put((session.pool, session.welcome.session))
        return True

    def computed(self) -> None:
        """Note that a cell just ran: the next one soon after it needs no announcement."""
        self._sent_s = time.monotonic()

    def _send(self) -> None:
        while True:
            pool, session = self._waiting.get()
            try:
                pool.signal_phase(session, "SOON")
            except DjinnError as error:
                log.info("the signal SOON did not reach the pool: %s", error)


class TypingWatch:
    """Notifies the kernel when the user types in a cell of this notebook. ``on_typing`` is called on the
    kernel's main thread, between cells, a few times a minute at most."""

    def __init__(self, on_typing: Callable[[], None]) -> None:
        self._on_typing = on_typing
        self._widget: Any = None
        self._shown_in: str | None = None

    def show(self, cell: str | None) -> None:
        """Put the widget and the script into the output of the cell that runs, whose id is ``cell``. Nothing
        to see, and no text for saved notebooks."""
        import ipywidgets

        self.close()
        self._shown_in = cell
        mark = f"djinn-typing-{uuid.uuid4().hex}"
        self._widget = ipywidgets.Text(layout=ipywidgets.Layout(display="none"))
        self._widget.add_class(mark)
        self._widget.observe(lambda change: self._on_typing(), "value")
        view = {"version_major": 2, "version_minor": 0, "model_id": self._widget.model_id}
        script = SCRIPT.replace("MARK", mark)
        display({WIDGET_VIEW: view, "text/plain": ""}, raw=True)
        display({"application/javascript": script, "text/plain": ""}, raw=True)

    def show_again(self, cell: str | None) -> None:
        """To be called when a cell begins to run: the one that holds the widget just lost its output."""
        if self._widget is not None and cell is not None and cell == self._shown_in:
            self.show(cell)

    def close(self) -> None:
        if self._widget is not None:
            self._widget.close()
            self._widget = None
