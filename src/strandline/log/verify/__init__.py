"""Looking through all of a directory that no node runs on: what is wrong in it, and what a start would do about it."""
