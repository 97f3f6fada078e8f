"""Where servers are and who runs them: from addresses, round trips and names to a place that can be relied on.

What may live here: pure functions from what was observed to a statement (``sphere``, ``discs``, ``prefixes``, ``ptr``,
``placing``), and the few modules that ask the network (``resolve``, ``rdap``, ``rtt``), one kind of question each.
"""
