"""Systems that are made of clients and providers, and are measured as such: they use the seams and know no provider.

What may live here: one package for each system. What they compute is in layer 1; here are threads, files and transfers.
"""

__all__: list[str] = []
