"""The machine of session memory: events change its tables and become commands. The engine alone drives it."""
