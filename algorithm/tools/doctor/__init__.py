"""Whether what is asked for can work on this machine, and what to do where it cannot."""
