"""The broker: topics, publishing, reading, subscriptions. It sits above the cluster and beneath the edge."""
