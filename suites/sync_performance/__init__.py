"""How quickly, and with how much traffic, a sync client uploads."""
