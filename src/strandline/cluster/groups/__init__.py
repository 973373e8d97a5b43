"""Coordinators: state machines whose state is a partition of an internal topic, and the runtime that hosts them."""
