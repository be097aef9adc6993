"""The engine: solves P_θ and differentiates it. Users never need to open it."""
