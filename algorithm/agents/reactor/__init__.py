"""Reactor (Gruslys et al. 2018, arXiv 1704.04651)."""
