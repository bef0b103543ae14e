"""Before a language model is trained: cost, published references, learning rate and batch size."""
