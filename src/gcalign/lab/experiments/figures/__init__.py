"""The paper's figures, each drawn from records alone: `(records, folder) -> the files it wrote`."""
