"""What a node does with requests: topics, publishing, reading. Above the cluster, beneath the edge."""
