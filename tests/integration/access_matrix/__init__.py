"""Every call and every kind of caller: who is answered, and what the answer may contain."""
