"""Codes, ciphers and manifests, checked against known results."""
