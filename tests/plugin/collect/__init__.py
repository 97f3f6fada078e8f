"""Configuration files as tests, as a user meets them: real pytest processes."""
