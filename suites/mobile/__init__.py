"""How a sync client does on a slow, lossy and interrupted link."""
