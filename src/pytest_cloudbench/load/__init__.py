"""Experiments on a provider, from due times to judged entries.

What may live here: modules of experiments on a provider, for agents and for the controller that serves them.
"""

from __future__ import annotations
