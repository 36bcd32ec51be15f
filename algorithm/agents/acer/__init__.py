"""ACER: actor-critic with experience replay (Wang et al. 2017, arXiv 1611.01224)."""
