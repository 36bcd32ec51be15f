"""Commands for demonstrations."""
