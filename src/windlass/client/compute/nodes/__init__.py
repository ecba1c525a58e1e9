"""Live nodes of a compute: their spec, their owner, and the ways to find and reach them."""
