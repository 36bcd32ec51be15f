"""From settings and a folder to a run, and from a run back to an agent."""
