"""Codes, ciphers and the arithmetic of redundancy: bytes to shares and back, who holds how many, which may fail.

What may live here: pure functions of bytes, keys and numbers. Random bytes and times are arguments.
"""
