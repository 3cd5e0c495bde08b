"""The machine of the queue: events change its tables and become commands. The engine alone drives it."""
