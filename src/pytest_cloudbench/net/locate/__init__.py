"""Locations and operators of servers, derived from their addresses, round trips and names.

This package holds pure functions from observations to conclusions (``sphere``, ``discs``, ``prefixes``, ``ptr``,
``placing``), and the few modules that query the network (``resolve``, ``rdap``, ``rtt``, ``trace``, ``content``), one
kind of query each.
"""
