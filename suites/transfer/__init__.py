"""How fast does one file go up and down, by its size, and what does each transfer cost besides its bytes?"""
