"""What a partition knows of its producers: sessions, ids of messages, transactions, and their snapshot."""
