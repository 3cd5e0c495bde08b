"""A page that changes while its socket is being written to, as on a busy machine: a pane is added, and the
Bokeh model in it is changed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import panel as pn
from bokeh.plotting import figure
from tornado.ioloop import IOLoop

from djinn_lab.dashboard.background import Background

pn.extension()
content = pn.Column()
background = Background(ThreadPoolExecutor(1))


def change() -> None:
    [connection] = pn.state.curdoc.session_context.session._subscribed_connections
    writing = connection._socket.write_lock
    writing.acquire()
    IOLoop.current().call_later(0.3, writing.release)
    plot = figure(height=100, width=100)
    content.append(pn.pane.Bokeh(plot))
    plot.title.text = "changed"
    content.append("All changes arrived.")


def loaded() -> None:
    background.page_loaded()
    background.soon(change)


pn.state.onload(loaded)
content.servable()
