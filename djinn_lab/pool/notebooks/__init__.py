"""Batch notebooks: admitted, run by a process of their own each, shown."""
