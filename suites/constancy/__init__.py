"""Whether a transfer takes longer when there are others (Cloud-RAID, III.D, Figures 5 and 6)."""
