"""The dashboard over a recorded pool in place of a live one."""
