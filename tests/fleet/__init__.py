"""The fleet, as a user meets it: real pytest processes, and the coordinator alone."""
