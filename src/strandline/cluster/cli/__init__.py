"""The program's entry point and the commands of the node's side."""
