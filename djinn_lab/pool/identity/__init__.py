"""Users of other systems: identity providers, and how the pool admits the tokens that they vouch for."""
