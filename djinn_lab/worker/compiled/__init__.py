"""Compiled regions: which programs are worth it, what runs in place of their ops, and whether it is right and
fast. What is decided here is a session's own: other sessions of the worker run as they did."""
