"""Jobs on the server: the queue, agents, what jobs print, and the agent that `clew serve` starts."""
