"""What a sync client does to save traffic."""
