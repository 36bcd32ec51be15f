"""Ways to explore that stand around an agent's `act`."""
