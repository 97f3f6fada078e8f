"""Experiments on a provider, piece by piece."""
