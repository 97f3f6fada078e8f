"""What does batching in front of a sync client save, and what delay does it add?"""
