"""Client sessions: the WebSocket, rate limits, admission of submitted segments, answers."""
