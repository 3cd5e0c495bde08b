"""Session memory under a simulated clock: the live pool's own policy object, simulated devices and users."""

from djinn_lab.simulator.figures import RunFigures
from djinn_lab.simulator.parameters import DeviceParameters, load_parameters
from djinn_lab.simulator.run import Simulation, simulate
from djinn_lab.simulator.workload import Agents, Script, Turn, Workload

__all__ = [
    "Agents",
    "DeviceParameters",
    "RunFigures",
    "Script",
    "Simulation",
    "Turn",
    "Workload",
    "load_parameters",
    "simulate",
]
