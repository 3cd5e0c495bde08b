"""Who has had how much of the pool, and whose turn it is."""
