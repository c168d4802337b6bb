"""What operators watch: the format of the log and metrics for Prometheus."""
