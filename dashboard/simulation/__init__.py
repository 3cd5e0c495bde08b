"""The page Simulation: policies side by side."""
