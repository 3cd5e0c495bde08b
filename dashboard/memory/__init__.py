"""The page Memory and KV: tiers, copies, wake-ups and sessions."""
