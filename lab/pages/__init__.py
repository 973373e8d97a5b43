"""The generated parts of the documentation; docs/generate.py puts them into the pages."""
