"""Tests of statistics and decisions, checked against known values."""
