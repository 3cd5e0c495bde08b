"""Admin: users, tokens, accounts, devices, jobs, sessions, reservations, the policy, the audit, the pool."""
