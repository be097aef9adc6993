"""Our own experiments; `docs/plan.md` says when each was planned."""
