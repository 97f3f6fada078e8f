"""How much load a provider carries before too many files are lost or late."""
