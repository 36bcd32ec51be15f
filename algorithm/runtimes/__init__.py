"""Ways to run the same parts: in one process, and later in many."""
