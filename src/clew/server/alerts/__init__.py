"""Messages by webhook and e-mail about runs and jobs that failed or do not improve. Off by default."""
