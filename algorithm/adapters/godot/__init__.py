"""Godot scenes through the protocol of Godot RL Agents: its messages, its engine's programs, supervised players."""
