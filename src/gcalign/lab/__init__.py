"""Training, evaluation, experiments and reports: everything that uses the library, nothing that it needs."""
