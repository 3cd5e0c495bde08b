"""What differs between Linux, macOS and Windows: a function each for what the rest of the package needs, with
one implementation for each system that has it. The pool runs on Linux, and on macOS for trying it out; the
client runs on all three."""
