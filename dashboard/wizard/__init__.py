"""The page Wizard: the profile of the machine."""
