"""Cells that hold several devices: planned, run, undone."""
