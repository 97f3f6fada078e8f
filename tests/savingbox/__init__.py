"""Systems made of clients and providers."""
