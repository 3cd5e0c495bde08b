"""The live server: API, driver, store, launcher. Policy lives in the cores (``jobs``, ``memory``), none
here."""
