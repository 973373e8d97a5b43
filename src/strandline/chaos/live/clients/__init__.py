"""The load of a live run: each client a process that writes its journal (`journal`) until its standard input ends."""
