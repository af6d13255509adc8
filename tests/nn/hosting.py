"""A model around one module, for tests of the module alone."""

from torch import nn

from headway.nn.trainable import Trainable


class Host(Trainable):
    """A model that is nothing but one module."""

    def __init__(self, module: nn.Module, replicas: int):
        super().__init__()
        self.module, self.replicas = module, replicas
