"""What a sync client sends when nobody touches its folder."""
