"""Implementations of :mod:`djinn_lab.pool.devices.launcher`. :mod:`djinn_lab.pool.server` chooses one."""
