"""Tests of agents on other hosts."""
