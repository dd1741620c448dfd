"""``quiver mirror``: copy topics from another cluster, and promote the copies."""
