"""One browser session of the dashboard (``panel serve dashboard`` runs this file for each)."""

from djinn_lab.dashboard.shell import build_page

build_page().servable(title="Djinn Lab")
