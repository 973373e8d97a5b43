"""The broker's operations, whatever the wire they came by."""
