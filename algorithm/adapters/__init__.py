"""Any simulator as lanes of plain arrays."""
