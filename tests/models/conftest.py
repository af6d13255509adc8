from folders_of_others import encoder_folder, reviews  # noqa: F401 (fixtures)
