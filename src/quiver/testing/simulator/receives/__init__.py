"""Receives in simulated clusters: the shipped client, connections and edge over simulated wires."""
