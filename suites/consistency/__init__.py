"""What do reads see after a write was answered, and for how long do they see something else?"""
