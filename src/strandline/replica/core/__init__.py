"""The pure replica: numbers and values in, decisions out; no clock, no network, no disk."""
