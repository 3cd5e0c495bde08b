"""Public traces as workloads, one format a file, and made-up ones."""
