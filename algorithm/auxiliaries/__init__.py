"""Extra rewards and losses that any agent can take."""
