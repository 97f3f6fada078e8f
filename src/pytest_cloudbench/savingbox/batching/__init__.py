"""Rules of UDS and more: when to pass a folder's changes on to a sync client, and which bytes.

Pure functions and state machines in virtual time: no clock, no I/O.
"""

from __future__ import annotations
