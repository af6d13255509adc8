"""Faster versions of parts of `nn`: GPU kernels, CPU matrix products, and checks of whether each can be trusted."""
