"""Looking inside models: a worker process keeps them loaded, and answers pages in a binary format."""
