"""How fast Quiver is, measured against a yardstick in the same run: ``python -m benchmarks``.

Each module or package here, other than ``harness``, is a set of benchmarks with a tuple
``BENCHMARKS`` of functions that take a ``Bench`` and return rows. Everything is bounded in count,
time and disk space, and works in a folder of its own that is removed afterwards.
"""
