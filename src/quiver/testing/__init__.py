"""Doubles for the disk, the network and the clock, with faults drawn from a seed."""
