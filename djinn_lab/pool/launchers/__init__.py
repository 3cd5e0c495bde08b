"""Implementations of :class:`djinn_lab.pool.launcher.Launcher`; :mod:`djinn_lab.pool.server` chooses one."""
