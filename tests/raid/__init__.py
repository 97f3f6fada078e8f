"""One provider made of n others."""
