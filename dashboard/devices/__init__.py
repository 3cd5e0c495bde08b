"""Devices: what runs on each, what waits for it, what it holds, and what it can do."""
