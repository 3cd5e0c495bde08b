"""The page History: use of devices, waits and shares over hours and days."""
