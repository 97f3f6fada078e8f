"""TCP sockets of this network namespace, and what they carried: the kernel's own counts, which need no rights.

What may live here: the kernel's messages about sockets (``diag``), asking it (``kernel``), counts into bytes of
connections (``sums``), and both together (``counter``). Only Linux tells; elsewhere the answer is why nothing is known.
"""
