"""Closes a worker's process in before it reads its first order: it computes, and can do little else.

Every layer works without privileges and through the kernel's own interface. What a machine lacks is left out,
and the level says so (:data:`djinn_lab.protocol.isolation.SandboxLevel`)."""

from djinn_lab.worker.sandbox.entering import Reach, enter, enter_beside_driver, enter_process_only

__all__ = ["Reach", "enter", "enter_beside_driver", "enter_process_only"]
