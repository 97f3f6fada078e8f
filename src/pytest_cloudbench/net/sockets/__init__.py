"""Byte counts of TCP sockets in this network namespace, as the kernel keeps them. Reading them needs no rights.

``diag`` parses the kernel's messages about sockets, ``kernel`` exchanges them, ``sums`` turns counts into bytes of
connections, and ``counter`` combines these. Only Linux has such counts. Elsewhere the result is the reason.
"""
