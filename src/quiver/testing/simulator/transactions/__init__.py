"""Transactions under simulation: workers that take, publish and acknowledge in one step, and the rules."""
