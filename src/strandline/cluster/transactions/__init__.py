"""Coordinator of transactions: producers of a transactional id, their transactions, and the orders that end them."""
