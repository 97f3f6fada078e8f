"""Availability, integrity and response time over a long time (Cloud-RAID, Tables I and III)."""
