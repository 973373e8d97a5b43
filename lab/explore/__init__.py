"""Exhaustive search over the production cores, within bounds: every order of messages, crashes and timers is met.

Seeds of the simulator sample schedules; here all of them are tried, breadth first, as TLC and stateright do it. The
cores are the product's own code and run as they are. What stands around them is modelled: a queue of messages, logs as
values, timers as choices.
"""
