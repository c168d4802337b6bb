"""Commands about jobs, agents and sites."""
