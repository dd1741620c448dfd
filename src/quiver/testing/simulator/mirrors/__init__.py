"""Mirrors in the simulator: a second cluster that copies the topics of the first, over simulated wires."""
