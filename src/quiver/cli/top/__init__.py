"""``quiver top``: samples of a node, how they are looked at, and the screen they are drawn on."""
