"""Encoders of observations: vectors, codes and images."""
