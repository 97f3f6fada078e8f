"""Agents forked from one warm worker, in place of an interpreter for each.

pytest-xdist starts a worker as a new interpreter, which imports and collects the same as all others. Here one worker
does so once for a controller and environment (``warm``), and the others are forked from it (``forking``, and on other
hosts ``hosts.processes``). xdist and execnet are unchanged: a gateway gets a socket before there is a process at its
other end, and what xdist sends waits in the socket. Where a fork is impossible or would not be safe, an interpreter
takes the same socket.
"""
