"""The delivery state of one subscription in one partition: pure machines over sets of offsets."""
