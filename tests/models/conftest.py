from folders_of_others import encoder_folder, gpt2_library, reviews  # noqa: F401 (fixtures)
