"""What is free where, which nodes a request may have, and which of them is best."""
