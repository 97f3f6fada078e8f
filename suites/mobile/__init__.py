"""How a sync client copes with a slow, lossy or interrupted link."""
