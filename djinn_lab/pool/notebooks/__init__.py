"""Batch notebooks: taken in, run by a process of their own each, shown."""
