"""How much a workload needs: what a machine was measured to do, and the arithmetic from there."""
