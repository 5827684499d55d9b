"""A vLLM server as a sampler: what is said over the wire, the connection that says it, and the sampler behind the port."""
