"""`python -m lab.mutants`: see lab/mutants/cli.py."""

from lab.mutants.cli import mutants

if __name__ == "__main__":
    mutants(prog_name="python -m lab.mutants")
