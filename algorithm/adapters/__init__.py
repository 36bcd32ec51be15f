"""Adapters: every simulator as Steps of named arrays."""
