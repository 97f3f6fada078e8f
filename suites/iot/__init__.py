"""Cloud storage as the backend of many sensors (thesis, section 4.2.4)."""
