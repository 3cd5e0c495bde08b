"""Notifies the kernel when the user types in a cell of this notebook, where the front end is JupyterLab.

There is no extension of JupyterLab to install: a text widget that is not displayed is the way to the kernel,
and a script beside it, which runs where outputs may run scripts, writes the time into it when a key is
pressed in an editor of the notebook. Elsewhere (VS Code, nbclient, saved notebooks) neither does anything.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from IPython.display import display

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"

SCRIPT = """
(() => {
  const EVERY_MS = 4000, LOOK_MS = 250, LOOKS_MAX = 80;
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


class TypingWatch:
    """``on_typing`` is called on the kernel's main thread, between cells, a few times a minute at most."""

    def __init__(self, on_typing: Callable[[], None]) -> None:
        self._on_typing = on_typing
        self._widget: Any = None

    def show(self) -> None:
        """Put both into the output of the cell that runs. Nothing to see, and no text for saved notebooks."""
        import ipywidgets

        self.close()
        mark = f"djinn-typing-{uuid.uuid4().hex}"
        self._widget = ipywidgets.Text(layout=ipywidgets.Layout(display="none"))
        self._widget.add_class(mark)
        self._widget.observe(lambda change: self._on_typing(), "value")
        view = {"version_major": 2, "version_minor": 0, "model_id": self._widget.model_id}
        script = SCRIPT.replace("MARK", mark)
        display({WIDGET_VIEW: view, "text/plain": ""}, raw=True)
        display({"application/javascript": script, "text/plain": ""}, raw=True)

    def close(self) -> None:
        if self._widget is not None:
            self._widget.close()
            self._widget = None
