"""K_θ as an operator on vectors: stored, made again, or shared among ranks."""
