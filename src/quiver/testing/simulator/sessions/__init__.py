"""Consumers with a session in simulated clusters: the shipped client over simulated connections."""
