"""In how many parts an object is uploaded fastest (Cloud-RAID, III.D, Table II)."""
