"""Session memory under a simulated clock: the live pool's own policy object, simulated devices and users."""

from djinn_lab.simulator.memory.figures import RunFigures
from djinn_lab.simulator.memory.parameters import DeviceParameters, load_parameters
from djinn_lab.simulator.memory.run import Simulation, simulate
from djinn_lab.simulator.memory.workload import AgentWorkload, Script, Turn, Workload

__all__ = [
    "AgentWorkload",
    "DeviceParameters",
    "RunFigures",
    "Script",
    "Simulation",
    "Turn",
    "Workload",
    "load_parameters",
    "simulate",
]
