"""The ``djinn-lab`` command. One module per group of commands; none imports torch."""

from djinn_lab.cli.app import main

__all__ = ["main"]
