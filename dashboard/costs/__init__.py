"""The page Cost model: what run times are predicted from, and how runs compare with that."""
