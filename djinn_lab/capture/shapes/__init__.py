"""What an op returns, known without data."""
