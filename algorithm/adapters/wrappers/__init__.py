"""Wrappers around an adapter."""
