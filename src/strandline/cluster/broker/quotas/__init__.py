"""Quotas of clients: what each has taken of this broker lately, and how long it waits when that was too much."""
