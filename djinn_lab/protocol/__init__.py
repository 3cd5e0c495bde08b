"""What clients and pools say to each other, what pools and workers do, and how clients find pools."""
