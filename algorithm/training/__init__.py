"""From a simulator's tick to an optimiser's step: the parts of every runtime."""
