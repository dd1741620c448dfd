"""The HTTP operations, one file for each noun."""
