"""What tests do to a sync client: a client in its network under a capture, and what it sent.

What may live here: modules of experiments on a sync client.
"""

from __future__ import annotations
