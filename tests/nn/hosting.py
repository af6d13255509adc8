"""A model that contains one module, for tests of that module."""

from torch import nn

from headway.nn.trainable import Trainable


class Host(Trainable):
    """A model that consists of one module."""

    def __init__(self, module: nn.Module, replicas: int):
        super().__init__()
        self.module, self.replicas = module, replicas
