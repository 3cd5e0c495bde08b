"""Builds the source archive and the wheels, and checks each as a user installs it."""
