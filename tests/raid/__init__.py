"""Arrays: one provider made of n others."""
