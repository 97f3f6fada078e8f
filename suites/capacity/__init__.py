"""How much load a provider can take before too many files are lost or late."""
