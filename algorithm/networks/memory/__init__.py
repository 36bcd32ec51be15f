"""Memories: a float32 state per lane, within an encoder (FrameStack) or after the body (Gru, Lstm, Attention)."""
