from folders_of_others import encoder_folder, gpt2_folder, gpt2_library, reviews, train_tiny  # noqa: F401 (fixtures)
