"""Who gets which message next: pure machines over sets of offsets, without I/O, clock or chance."""
