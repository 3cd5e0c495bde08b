"""What a worker does differently where its device is a GPU."""
