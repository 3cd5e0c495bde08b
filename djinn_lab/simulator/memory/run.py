"""One run: a policy, a workload, a device. The same engine decides as in the live pool; only the workers and
the clock are simulated."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from djinn_lab import engine, jobs
from djinn_lab.jobs.fairness import ShareState
from djinn_lab.memory import (
    GrantSegment,
    MemoryPolicy,
    PhaseSignalled,
    SessionOpened,
    ValuesLost,
)
from djinn_lab.simulator.device import SimulatedDevice
from djinn_lab.simulator.driver import OPS, SimulatedDriver
from djinn_lab.simulator.memory.figures import RunFigures, Tally, figures_of
from djinn_lab.simulator.memory.parameters import DeviceParameters
from djinn_lab.simulator.memory.workload import Script, Turn, Workload

NAME = "sim:0"
QUEUE_POLICY = "default"


@dataclass(slots=True)
class Agent:
    """A simulated agent; ``placed_s``: since when its turn waits; ``waited_s``: for memory. ``nbytes``: what
    its state comes to, wherever it is."""

    script: Script
    turn: int = 0
    placed_s: float = 0.0
    waited_s: float = 0.0
    nbytes: int = 0
    admission: bool = False
    closed: bool = False
    hit: bool = False

    @property
    def job(self) -> str:
        """Return the job of the present turn."""
        return f"{self.script.session}/{self.turn}"


class Simulation(SimulatedDriver):
    def __init__(
        self, policy: MemoryPolicy, workload: Workload, parameters: DeviceParameters, seed: int = 0
    ) -> None:
        super().__init__({NAME: parameters})
        self.policy = policy
        self.workload = workload
        self.parameters = parameters
        self.seed = seed
        self.device = self.devices[NAME]
        self.tally = Tally()
        self.agents: dict[str, Agent] = {}
        self._left = len(workload.scripts)
        self._closed = 0
        self._waiting_to_open: deque[Script] = deque()

    def figures(self) -> RunFigures:
        """Simulate the whole workload, and return its figures."""
        self.send(engine.PoolOpened(0.0, QUEUE_POLICY, ShareState(), self.policy))
        self.start()
        for script in self.workload.scripts:
            if script.after:
                self._waiting_to_open.append(script)
            else:
                self._open_at(script)
        while self._left:
            self.step()
        counters = self.engine.accounts.snapshot().counters
        name = self.workload.name
        return figures_of(self.tally, counters, self.policy.name, name, self.seed, self.now_s)

    # -- the engine ----------------------------------------------------------------------------------------

    def perform(self, command: engine.Command) -> None:
        match command:
            case GrantSegment():
                self._agent(command.job).waited_s += command.waited_s
            case jobs.Notify(state=jobs.JobState.RESTORING):
                self._agent(command.job).admission |= self._job(command.job).memory_release.of_other_sessions
            case jobs.Notify(state=jobs.JobState.DONE):
                self._finish_turn(self._agent(command.job))
            case jobs.Notify(state=jobs.JobState.FAILED):
                self._kill(self._agent(command.job))
            case ValuesLost():
                raise AssertionError(command)
            case _:
                super().perform(command)

    def _agent(self, job: str) -> Agent:
        return self.agents[self._job(job).session]

    # -- an agent ------------------------------------------------------------------------------------------

    def _open_at(self, script: Script) -> None:
        self.clock.at(script.opens_s, lambda: self._open(script))

    def _open(self, script: Script) -> None:
        agent = self.agents[script.session] = Agent(script)
        self.send(SessionOpened(self.now_s, script.session, script.user))
        self._wish(agent)

    def _turn(self, agent: Agent) -> Turn:
        return agent.script.turns[agent.turn]

    def _bytes_of(self, turn: Turn) -> int:
        return (turn.new_tokens + turn.said_tokens) * self.parameters.bytes_per_token

    def _wish(self, agent: Agent) -> None:
        """Submit the agent's turn."""
        now_s, session = self.now_s, agent.script.session
        if agent.closed:
            return
        account = self.engine.accounts.session(session)
        assert account is not None
        agent.hit = account.tier == "device" and account.moving != "evict"
        agent.placed_s, agent.waited_s = now_s, 0.0
        turn = self._turn(agent)
        segment = jobs.SegmentSubmitted(
            at_s=now_s,
            job=agent.job,
            segment=0,
            session=session,
            user=agent.script.user,
            priority=jobs.Priority.NORMAL,
            ops_total=OPS,
            final=True,
            predicted_s=self._compute_s(turn, turn.new_tokens),
        )
        self.send(engine.SegmentArrived(now_s, segment, self._bytes_of(turn)))
        if agent.script.chaos:
            self.send(PhaseSignalled(now_s, session, "COMPUTE"))
            self.send(PhaseSignalled(now_s, session, "IO_WAIT", 1.0))
            self.send(PhaseSignalled(now_s, session, "COMPUTE"))
        if agent.script.dies_turn == agent.turn and not agent.closed and not agent.hit:
            self.clock.after(0.3 * self._floor_s(agent), lambda: self._close(agent))

    def _floor_s(self, agent: Agent) -> float:
        return agent.nbytes / self.parameters.link_bytes_per_s

    def _woke(self, agent: Agent) -> None:
        tally = self.tally
        tally.turns += 1
        if agent.nbytes == 0:
            if agent.admission:
                tally.admission_s.append(agent.waited_s)
            tally.live += 1
            tally.live_max = max(tally.live_max, tally.live)
        else:
            tally.wakes_s.append(agent.waited_s)
            tally.floors_s.append(self._floor_s(agent))
            tally.hits += agent.hit and agent.waited_s <= 0.0

    def begin(self, job: jobs.Job, device: SimulatedDevice) -> float | None:
        """Begin a turn; dropped state is rebuilt first."""
        agent = self.agents[job.session]
        turn, parameters, here = self._turn(agent), self.parameters, device.bytes_of(job.session)
        if job.preemptions:
            return self._compute_s(turn, turn.new_tokens)
        self._woke(agent)
        missing, grows = agent.nbytes - here, self._bytes_of(turn)
        if not device.grow(job.session, missing + grows):
            return None
        agent.nbytes += grows
        self.tally.live_bytes_max = max(self.tally.live_bytes_max, self._live_bytes())
        rebuilt = missing // parameters.bytes_per_token
        self.tally.rebuilt_tokens += rebuilt
        read = rebuilt + turn.new_tokens
        first_s = self.now_s - agent.placed_s + parameters.prefill_s(read) + parameters.decode_s_per_token
        if rebuilt or here:
            self.tally.first_tokens_s.append(first_s)
        self.tally.said_tokens += turn.said_tokens
        return self._compute_s(turn, read)

    def stopped(self, job: jobs.Job, device: SimulatedDevice) -> None:
        """Keep the stored copy: an agent's state only grows."""

    def _compute_s(self, turn: Turn, read: int) -> float:
        parameters = self.parameters
        return parameters.prefill_s(read) + turn.said_tokens * parameters.decode_s_per_token

    def _live_bytes(self) -> int:
        return sum(agent.nbytes for agent in self.agents.values() if not agent.closed)

    def _finish_turn(self, agent: Agent) -> None:
        if agent.closed:
            return
        agent.admission = False
        agent.turn += 1
        if agent.turn == len(agent.script.turns):
            self.tally.finished += 1
            self._close(agent)
            return
        turn = self._turn(agent)
        self._announce(agent, turn)
        due_s = self.now_s + turn.gap_s
        if agent.script.together_s is not None:
            due_s = agent.script.together_s * math.ceil(due_s / agent.script.together_s)
        self.clock.at(due_s, lambda: self._wish(agent))

    def _announce(self, agent: Agent, turn: Turn) -> None:
        now_s, session = self.now_s, agent.script.session
        expected_s = turn.gap_s if self.policy.trust_estimates else turn.announced_s
        rebuild_s = None
        if self.policy.recompute != "never":
            rebuild_s = self.parameters.prefill_s(agent.nbytes // self.parameters.bytes_per_token)
        self.send(PhaseSignalled(now_s, session, "IO_WAIT", expected_s, rebuild_s))
        if agent.script.chaos:
            self.send(PhaseSignalled(now_s, session, "IO_WAIT", expected_s, rebuild_s))
            self.send(PhaseSignalled(now_s, session, "COMPUTE"))
            self.send(PhaseSignalled(now_s, session, "IO_WAIT", expected_s, rebuild_s))

    def _kill(self, agent: Agent) -> None:
        """End an agent that ran out of memory; its wake-up counts as infinite."""
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
        self.send(engine.SessionClosed(self.now_s, agent.script.session))
        while self._waiting_to_open and self._waiting_to_open[0].after <= self._closed:
            script = self._waiting_to_open.popleft()
            self.clock.after(0.0, lambda script=script: self._open(script))  # type: ignore[misc]


def simulate(
    policy: MemoryPolicy, workload: Workload, parameters: DeviceParameters, seed: int = 0
) -> RunFigures:
    return Simulation(policy, workload, parameters, seed).figures()
