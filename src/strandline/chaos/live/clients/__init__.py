"""The load of a live run, each client a process that writes a journal (`checkers.journal`) until its input ends."""
