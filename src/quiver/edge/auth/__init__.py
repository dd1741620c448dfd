"""Authentication and authorization: principals, permissions, tokens, certificates, quotas, audit."""
