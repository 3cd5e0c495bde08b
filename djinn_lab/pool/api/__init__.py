"""REST routes: one module per endpoint family, and the web server that answers them."""
