"""The pool's database: what is written when, and what is read back."""
