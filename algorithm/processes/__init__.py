"""Other processes of a run: workers, actors, learners, and the system that runs them."""
