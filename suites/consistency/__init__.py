"""What do reads return after a write was confirmed, and for how long may they return anything else?"""
