"""The client's methods, by noun: subscriptions, their administration, the cluster."""
