"""One partition on one node: leading it, following its leader, and changing between the two."""
