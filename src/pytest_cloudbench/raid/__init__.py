"""One provider made of n others: its content is sealed, coded, spread, and readable from any k of them.

What may live here: the array's file, its metadata, transfers to its children, and the driver.
"""
