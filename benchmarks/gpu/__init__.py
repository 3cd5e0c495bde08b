"""What a GPU pool costs and gains beside plain torch on the same GPU (``make bench-gpu``)."""
