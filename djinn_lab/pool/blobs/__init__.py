"""Tensors on their way: uploads by content hash, results by name, and the directories that hold both."""
