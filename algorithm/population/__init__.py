"""Populations: members that train side by side and copy the best ones."""
