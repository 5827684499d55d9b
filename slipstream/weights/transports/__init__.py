"""How chunks travel: HTTP and Arrow Flight behind one port, `source.ChunkSource`."""
