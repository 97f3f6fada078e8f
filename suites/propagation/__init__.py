"""How long until another device has a new file."""
