"""The pages' commands and programs, run as a reader types them: `make docs-run`."""
