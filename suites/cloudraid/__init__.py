"""What an array of providers gains and costs, and what it survives (Cloud-RAID)."""
