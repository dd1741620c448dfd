"""How much a caller may use: rates, quotas, failed logins. No clock: time comes in."""
