"""Drive the engine: stamp events, journal them, carry out its commands at workers and sessions."""
