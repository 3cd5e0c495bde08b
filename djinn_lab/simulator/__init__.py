"""The cores under a simulated clock: the live pool's own objects decide; devices, users and time are made.

- :mod:`~djinn_lab.simulator.driver`: the whole engine (:mod:`djinn_lab.engine`) with simulated workers
- :mod:`~djinn_lab.simulator.pool`: cells on it, with agents (:mod:`~djinn_lab.simulator.agents`) and a check
  of what the engine says (:mod:`~djinn_lab.simulator.truth`)
- :mod:`~djinn_lab.simulator.memory`: agents on it whose state grows, and what stays on the device
- :mod:`~djinn_lab.simulator.queue`: which job runs next and where (:mod:`djinn_lab.jobs.decision`)
- :mod:`~djinn_lab.simulator.traces`: public traces of clusters and of agents, read where they lie, and
  made-up ones"""
