"""Unity scenes that carry ML-Agents: in the editor and in built players."""
