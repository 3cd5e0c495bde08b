"""One browser session of the dashboard (``panel serve dashboard`` runs this file for each)."""

from djinn_lab.dashboard.shell import build_page
from djinn_lab.protocol.recording_file import recording_path

if (recording := recording_path()) is None:
    page = build_page()
else:
    from djinn_lab.dashboard.recorded.shell import build_recorded_page

    page = build_recorded_page(recording)
page.servable(title="Djinn Lab")
