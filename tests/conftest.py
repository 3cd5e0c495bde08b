"""Puts this folder on the path of every test, for the kits that several folders share."""
