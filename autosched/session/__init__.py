"""A request, its task, its records and what is made of them: what the API and the command line join."""
