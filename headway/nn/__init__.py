"""The mathematics: every tensor has a leading axis of replicas."""
