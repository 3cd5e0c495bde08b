"""``python -m djinn_lab.cli``."""

from djinn_lab.cli.app import main

if __name__ == "__main__":
    main()
