"""Who reads which partition: a consumer group as pure machines, without I/O, clock or chance."""
