"""Whether files of any size are handled badly (thesis, section 4.2.3)."""
