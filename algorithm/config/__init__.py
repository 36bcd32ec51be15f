"""Settings: their files, types and bounds."""
