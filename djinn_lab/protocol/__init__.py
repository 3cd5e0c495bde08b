"""What clients and pools say to each other, and how they find each other."""
