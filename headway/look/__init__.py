"""Look inside models: attention maps, gradients, losses without heads."""
