"""What stays in the notebook's process: ops on the host, shared memory, random numbers, forks, Ctrl-C."""
