"""What an agent remembers: one float32 vector per lane, in front of the features or behind them."""
