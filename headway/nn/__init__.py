"""The parts that models are made of: every tensor has a leading axis of replicas."""
