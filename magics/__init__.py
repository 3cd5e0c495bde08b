"""The notebook's side: ``%%djinn``, ``%djinn``, progress, completion. Loaded by ``%load_ext djinn_lab``."""

if __name__ != "djinn_lab.magics":
    raise ImportError("import djinn_lab.magics (this folder is part of the djinn_lab package)")
