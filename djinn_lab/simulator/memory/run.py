"""One run: a policy, a workload, a device. The same object decides as in the live pool; only the workers and
the clock are simulated."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from djinn_lab.memory import (
    AnswerPhase,
    CellEnded,
    ClockTicked,
    Command,
    DeviceAdded,
    Event,
    GrantSegment,
    HoldSegment,
    MemoryAccounts,
    MemoryPolicy,
    PhaseSignalled,
    RefuseSegment,
    SegmentPlaced,
    SessionBound,
    SessionClosed,
    SessionOpened,
    ValuesLost,
)
from djinn_lab.simulator.events import Clock
from djinn_lab.simulator.memory.device import NAME, SimulatedDevice
from djinn_lab.simulator.memory.figures import RunFigures, Tally, figures_of
from djinn_lab.simulator.memory.parameters import DeviceParameters
from djinn_lab.simulator.memory.workload import Script, Turn, Workload

TICK_S = 0.25
"""As often as the pool ticks."""


@dataclass(slots=True)
class Agent:
    """``placed_s``: since when its turn waits. ``bytes``: what its state comes to, wherever it is."""

    script: Script
    turn: int = 0
    placed_s: float = 0.0
    nbytes: int = 0
    admission: bool = False
    closed: bool = False
    hit: bool = False
    due_s: float = 0.0


class Simulation:
    def __init__(
        self, policy: MemoryPolicy, workload: Workload, parameters: DeviceParameters, seed: int = 0
    ) -> None:
        self.policy = policy
        self.workload = workload
        self.parameters = parameters
        self.seed = seed
        self.clock = Clock()
        self.accounts = MemoryAccounts(policy)
        self.device = SimulatedDevice(parameters, self.clock, self.say)
        self.tally = Tally()
        self.agents: dict[str, Agent] = {}
        self._left = len(workload.scripts)
        self._closed = 0
        self._waiting_to_open: deque[Script] = deque()
        self._said: deque[Event] = deque()
        self._saying = False
        self._due_s: float | None = None

    def run(self) -> RunFigures:
        parameters = self.parameters
        self.say(
            DeviceAdded(
                0.0,
                NAME,
                parameters.memory_bytes,
                parameters.host_bytes,
                parameters.disk_bytes,
                parameters.link_bytes_per_s,
                parameters.slots,
            )
        )
        for script in self.workload.scripts:
            if script.after:
                self._waiting_to_open.append(script)
            else:
                self._open_at(script)
        self.clock.after(TICK_S, self._tick)
        while self._left and self.clock.step():
            pass
        counters = self.accounts.snapshot().counters
        name = self.workload.name
        return figures_of(self.tally, counters, self.policy.name, name, self.seed, self.clock.now_s)

    # -- the pool ------------------------------------------------------------------------------------------

    def say(self, event: Event) -> None:
        """Events that come up while one is handled wait for its end."""
        self._said.append(event)
        if self._saying:
            return
        self._saying = True
        while self._said:
            for command in self.accounts.handle(self._said.popleft()):
                self._perform(command)
        self._saying = False
        due_s = self.accounts.next_timeout_s()
        if due_s is not None and (self._due_s is None or due_s < self._due_s):
            self._due_s = due_s
            self.clock.at(due_s, self._timeout)

    def _timeout(self) -> None:
        self._due_s = None
        self.say(ClockTicked(self.clock.now_s))

    def _perform(self, command: Command) -> None:
        match command:
            case GrantSegment():
                self._granted(self.agents[command.job])
            case HoldSegment():
                self.agents[command.job].admission |= command.admission
            case RefuseSegment():
                self._kill(self.agents[command.job])
            case ValuesLost():
                raise AssertionError(command)
            case AnswerPhase():
                pass
            case _:
                self.device.obey(command)

    def _tick(self) -> None:
        self.say(ClockTicked(self.clock.now_s))
        self.clock.after(TICK_S, self._tick)

    # -- an agent ------------------------------------------------------------------------------------------

    def _open_at(self, script: Script) -> None:
        self.clock.at(script.opens_s, lambda: self._open(script))

    def _open(self, script: Script) -> None:
        agent = self.agents[script.session] = Agent(script)
        self.say(SessionOpened(self.clock.now_s, script.session, script.user))
        self.say(SessionBound(self.clock.now_s, script.session, NAME))
        self._wish(agent)

    def _turn(self, agent: Agent) -> Turn:
        return agent.script.turns[agent.turn]

    def _bytes_of(self, turn: Turn) -> int:
        return (turn.new_tokens + turn.said_tokens) * self.parameters.bytes_per_token

    def _wish(self, agent: Agent) -> None:
        """The turn begins: it wants to compute."""
        now_s, session = self.clock.now_s, agent.script.session
        if agent.closed:
            return
        account = self.accounts.session(session)
        assert account is not None
        agent.hit = account.tier == "device" and account.moving != "evict"
        agent.placed_s = now_s
        self.say(SegmentPlaced(now_s, session, agent.turn, session, self._bytes_of(self._turn(agent))))
        if agent.script.chaos:
            self.say(PhaseSignalled(now_s, session, "COMPUTE"))
            self.say(PhaseSignalled(now_s, session, "IO_WAIT", 1.0))
            self.say(PhaseSignalled(now_s, session, "COMPUTE"))
        if agent.script.dies_turn == agent.turn and not agent.closed and not agent.hit:
            self.clock.after(0.3 * self._floor_s(agent), lambda: self._close(agent))

    def _floor_s(self, agent: Agent) -> float:
        return agent.nbytes / self.parameters.link_bytes_per_s

    def _granted(self, agent: Agent) -> None:
        now_s = self.clock.now_s
        waited_s = now_s - agent.placed_s
        tally = self.tally
        tally.turns += 1
        if agent.nbytes == 0:
            if agent.admission:
                tally.admission_s.append(waited_s)
            tally.live += 1
            tally.live_max = max(tally.live_max, tally.live)
        else:
            tally.wakes_s.append(waited_s)
            tally.floors_s.append(self._floor_s(agent))
            tally.hits += agent.hit and waited_s <= 0.0
        self.device.compute(lambda: self._start(agent), lambda: self._finish(agent))

    def _start(self, agent: Agent) -> float:
        """Seconds of computing; what was dropped is built first."""
        if agent.closed:
            return 0.0
        session, parameters, turn = agent.script.session, self.parameters, self._turn(agent)
        held = self.device.held.get(session)
        missing = agent.nbytes - (held.device if held is not None else 0)
        if not self.device.grow(session, missing + self._bytes_of(turn)):
            self._kill(agent)
            return 0.0
        agent.nbytes += self._bytes_of(turn)
        self.tally.live_bytes_max = max(self.tally.live_bytes_max, self._live_bytes())
        rebuilt = missing // parameters.bytes_per_token
        self.tally.rebuilt_tokens += rebuilt
        prefill_s = parameters.prefill_s(rebuilt + turn.new_tokens)
        first_s = self.clock.now_s - agent.placed_s + prefill_s + parameters.decode_s_per_token
        if rebuilt or (held is not None and held.device):
            self.tally.first_tokens_s.append(first_s)
        self.tally.said_tokens += turn.said_tokens
        return prefill_s + turn.said_tokens * parameters.decode_s_per_token

    def _live_bytes(self) -> int:
        return sum(agent.nbytes for agent in self.agents.values() if not agent.closed)

    def _finish(self, agent: Agent) -> None:
        if agent.closed:
            return
        now_s, session = self.clock.now_s, agent.script.session
        self.device.report(job=session)
        self.say(CellEnded(now_s, session))
        agent.admission = False
        agent.turn += 1
        if agent.turn == len(agent.script.turns):
            self.tally.finished += 1
            self._close(agent)
            return
        turn = self._turn(agent)
        self._announce(agent, turn)
        due_s = self.clock.now_s + turn.gap_s
        if agent.script.together_s is not None:
            due_s = agent.script.together_s * math.ceil(due_s / agent.script.together_s)
        self.clock.at(due_s, lambda: self._wish(agent))

    def _announce(self, agent: Agent, turn: Turn) -> None:
        now_s, session = self.clock.now_s, agent.script.session
        expected_s = turn.gap_s if self.policy.trust_estimates else turn.announced_s
        rebuild_s = None
        if self.policy.recompute != "never":
            rebuild_s = self.parameters.prefill_s(agent.nbytes // self.parameters.bytes_per_token)
        self.say(PhaseSignalled(now_s, session, "IO_WAIT", expected_s, rebuild_s))
        if agent.script.chaos:
            self.say(PhaseSignalled(now_s, session, "IO_WAIT", expected_s, rebuild_s))
            self.say(PhaseSignalled(now_s, session, "COMPUTE"))
            self.say(PhaseSignalled(now_s, session, "IO_WAIT", expected_s, rebuild_s))

    def _kill(self, agent: Agent) -> None:
        """Out of memory: it never wakes."""
        self.tally.killed += 1
        self.tally.wakes_s.append(math.inf)
        self.tally.floors_s.append(self._floor_s(agent))
        self.tally.first_tokens_s.append(math.inf)
        self._close(agent)

    def _close(self, agent: Agent) -> None:
        if agent.closed:
            return
        agent.closed = True
        self.tally.live -= agent.nbytes > 0
        self._left -= 1
        self._closed += 1
        self.say(SessionClosed(self.clock.now_s, agent.script.session))
        while self._waiting_to_open and self._waiting_to_open[0].after <= self._closed:
            script = self._waiting_to_open.popleft()
            self.clock.after(0.0, lambda script=script: self._open(script))  # type: ignore[misc]


def simulate(
    policy: MemoryPolicy, workload: Workload, parameters: DeviceParameters, seed: int = 0
) -> RunFigures:
    return Simulation(policy, workload, parameters, seed).run()
