"""The pytest plugin: a real cluster and a simulated one as fixtures. See docs/testing-your-code.md.

`plugin` is what pytest imports at every start of everybody who has the package installed: it imports nothing of
Strandline until a fixture is used.
"""
