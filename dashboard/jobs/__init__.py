"""The page Jobs: cells and batch notebooks."""
