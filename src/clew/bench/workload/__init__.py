"""A node benchmark: a fixed training workload (`clew bench particleflow`, `node`, `score`)."""
