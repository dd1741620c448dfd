"""Who may do what: principals, permissions, tokens, certificates, quotas, and one check of them all."""
