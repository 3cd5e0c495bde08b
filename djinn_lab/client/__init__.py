"""One session with a pool. Start at :func:`djinn_lab.client.connect.connect`."""
