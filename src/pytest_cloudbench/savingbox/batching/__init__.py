"""When to pass a folder's changes on to a sync client, and which bytes: the rules of UDS, and more.

What may live here: pure functions and state machines in virtual time. No clock, no I/O.
"""

from __future__ import annotations
