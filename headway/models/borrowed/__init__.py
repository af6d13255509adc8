"""Models with architectures that Headway does not implement, run by `transformers`."""
