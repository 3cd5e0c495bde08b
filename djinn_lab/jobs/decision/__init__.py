"""Which request runs next, where, and who moves aside for it: a pure function of a snapshot."""
