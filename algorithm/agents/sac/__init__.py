"""SAC: soft actor-critic (Haarnoja et al. 2018, arXiv 1812.05905)."""
