"""From a trainer configuration of Unity's ML-Agents to environment folders."""
