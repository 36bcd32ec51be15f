"""The command line as `python -m algorithm`."""

from algorithm.cli.main import run_process

if __name__ == "__main__":
    run_process()
