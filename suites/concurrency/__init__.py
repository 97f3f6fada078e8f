"""How many threads an application needs (thesis, section 4.2.2)."""
