"""Messages between nodes and records of the metadata log: `*.proto`, and what `make proto` generates."""
