"""Reference pages that are made from the code they describe, so that they cannot drift from it."""
