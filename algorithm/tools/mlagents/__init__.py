"""Import of trainer configurations of Unity's ML-Agents as environment folders."""
