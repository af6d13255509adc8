"""The small models whose maps are tested."""

from sentence_models import decoder, encoder, letters, without_attention, words  # noqa: F401 (fixtures)
