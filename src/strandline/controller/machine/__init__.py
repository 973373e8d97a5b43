"""The pure state machine of the active controller: commands in, records and a reply out. No clock, chance or I/O."""
