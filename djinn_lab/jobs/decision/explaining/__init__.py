"""Why a job waits, and when it starts."""
