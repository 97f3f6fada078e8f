"""Agents on other hosts: a table of hosts, one connection to each, and what xdist starts through it.

A host is whatever gives a Python on a pipe: ssh, ``kubectl exec``, ``docker exec``, ``srun``. One program (``relay``)
runs there for a session. It starts the agents and carries their bytes, so that fifty agents need one connection. The
connection knows within the session's patience that a host is gone. xdist sees gateways like any others.
"""
