"""Codes, ciphers and manifests: what they give is checked against what is known."""
