"""Encoders of observations: vectors and images."""
