"""Codes, ciphers and the arithmetic of redundancy: bytes to shares and back, who holds how many, what may fail.

What may live here: pure functions of bytes, keys and numbers. Chance comes in as an argument, time as a number.
"""

__all__: list[str] = []
