"""Configuration files as tests, in real pytest processes as a user starts them."""
