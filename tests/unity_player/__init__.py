"""A scripted player: the Unity side of ML-Agents' protocol, to test a pipeline without Unity (docs/unity.md)."""
