"""What a node counts, shows and raises alarms about."""
