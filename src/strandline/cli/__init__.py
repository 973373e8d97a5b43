"""The command line, of nodes and clients alike: `strandline`. Commands are imported when they are used."""
