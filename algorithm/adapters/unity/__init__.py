"""Unity scenes through ML-Agents: its protocol on current versions of Python and protobuf, with supervised players."""
