"""Unity through ML-Agents: its client made to work on today's Python, and a wire that survives what players do."""
