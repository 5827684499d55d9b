"""Golden files: what torch and transformers compute for a tiny random model of every family."""
