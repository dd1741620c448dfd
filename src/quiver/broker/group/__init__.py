"""Consumer groups: which member reads which partition."""
