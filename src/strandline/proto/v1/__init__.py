"""Messages between nodes and records of the metadata log: `*.proto`, and the modules generated from them (`make proto`)."""
