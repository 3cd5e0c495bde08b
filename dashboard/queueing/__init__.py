"""The page Queue: waiting cells, the reasons they wait, and fairness."""
