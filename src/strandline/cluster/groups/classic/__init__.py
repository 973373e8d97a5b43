"""Groups of the classic protocol: members elect a leader, who assigns."""
