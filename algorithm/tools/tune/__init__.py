"""The search for settings: the space, the study that several processes share, its trials."""
