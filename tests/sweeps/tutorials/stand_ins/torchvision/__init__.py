"""Stands in for torchvision where it is not installed: data sets of random pictures and the usual transforms,
so that tutorials that begin with a download run without one. No models."""

from . import datasets, transforms, utils

__version__ = "0.0"
__all__ = ["datasets", "transforms", "utils"]
