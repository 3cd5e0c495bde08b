"""How each session's values came to be: what a pool needs to make them again when their worker is lost.

Theory of operation
-------------------

A session's state is its last whole copy below the device, as changed by its runs since then. The *log*
has these runs in order, as they were sent: programs, names of their inputs, random states. A run carries a
*serial*, and a copy says the last serial that it has the results of, which cuts the log.

When the worker is lost, the session is restored from the copy, and its next cell first replays the log:
whole runs, in order, so that in-place writes and random numbers come out bit for bit. A run is left out
where nothing that is alive depends on it (:mod:`.pruning`). A replay may be preempted; then the log is split
where it stopped.

The log is bounded in bytes, and in the seconds that a replay would take: beyond these a copy is asked for. A
log that is over its bound, or whose state is spread over a gang's devices, is *void* until the next whole
copy: values are then lost with their worker, as the error says.

Everything here is data and arithmetic; :mod:`djinn_lab.pool.execution.recovery` sends and receives."""
