"""Moves of replicas: what they are (`layout`), which to make (`planner`, pure), and how they are made (`running`)."""
