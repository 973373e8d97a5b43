"""Groups whose coordinator assigns (KIP-848): members heartbeat, revoke and take over as it answers."""
