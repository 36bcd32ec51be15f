"""Scenes of game engines, in processes of their own: what the adapters of all engines share."""
