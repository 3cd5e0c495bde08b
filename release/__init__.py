"""What is published: the source archive and the wheels, built and then checked as a user installs them."""
