"""`python -m lab.explore`: see lab/explore/cli.py."""

from lab.explore.cli import explore

if __name__ == "__main__":
    explore(prog_name="python -m lab.explore")
