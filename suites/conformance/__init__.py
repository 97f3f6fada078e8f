"""Does a driver do what it declares? Nothing is measured."""
