"""The same mathematics faster: kernels for a GPU, products on a CPU, and whether each can be trusted."""
