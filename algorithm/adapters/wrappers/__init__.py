"""Adapters around another adapter, and wrappers of single environments."""
