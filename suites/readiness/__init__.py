"""How long after its upload can a file be downloaded by another client?"""
