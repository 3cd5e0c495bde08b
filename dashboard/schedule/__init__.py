"""The page Schedule: when each op was meant to run, and when it ran."""
