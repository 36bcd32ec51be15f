"""A2C and A3C: advantage actor-critic (Mnih et al. 2016, arXiv 1602.01783)."""
