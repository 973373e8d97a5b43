"""Quotas of clients: measures what each client uses of this broker, and makes it wait if that is above its quota."""
