"""What is inside a model, for a page: a process of its own that has the models loaded and answers in bytes"""
