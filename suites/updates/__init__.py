"""What a sync client sends for streams of small updates."""
