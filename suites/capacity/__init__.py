"""How much load a provider carries at a loss and a response time that one can live with."""
