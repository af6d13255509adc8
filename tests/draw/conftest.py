"""A model whose maps are drawn."""

from sentence_models import decoder, letters, words  # noqa: F401 (fixtures)
