"""The network as it is measured: links, captures, the flows in a capture, and the kernel's counts of sockets."""

from __future__ import annotations
