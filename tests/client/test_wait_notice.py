"""A script that waits says once why."""

from __future__ import annotations

from djinn_lab.client.wait_notice import SAY_AFTER_S, WaitNotice
from djinn_lab.protocol.messages import JobUpdate


class Script:
    def __init__(self, quiet: bool = False) -> None:
        self.now_s = 0.0
        self.said: list[str] = []
        self.notice = WaitNotice(quiet, lambda: self.now_s, self.said.append)

    def hears(self, state: str, reason: str = "", job: str = "0123456789abcdef") -> None:
        self.notice.on_update(JobUpdate(job, state, reason))

    def waits(self, seconds: float) -> list[str]:
        self.now_s += seconds
        self.notice.tick()
        said = list(self.said)
        self.said.clear()
        return said


def test_why_a_cell_waits_is_said_once_it_has_waited_for_long() -> None:
    script = Script()
    script.hears("QUEUED", "others have the memory.")
    assert script.waits(SAY_AFTER_S / 2) == []
    script.hears("QUEUED", "one session has it.")
    assert script.waits(SAY_AFTER_S) == ["A cell waits: one session has it. (djinn-lab why 01234567)"]
    assert script.waits(SAY_AFTER_S) == []
    script.hears("QUEUED", "the device is lost.", job="another cell")
    assert script.waits(2 * SAY_AFTER_S) == ["A cell waits: the device is lost. (djinn-lab why another )"]


def test_a_cell_that_runs_or_that_nothing_is_to_be_said_of_is_silent() -> None:
    script, quiet = Script(), Script(quiet=True)
    for one in (script, quiet):
        one.hears("QUEUED", "others run.")
    script.hears("RUNNING")
    assert script.waits(2 * SAY_AFTER_S) == quiet.waits(2 * SAY_AFTER_S) == []
