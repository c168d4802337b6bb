"""The training service: a database of runs, studies and jobs behind a REST API. It runs nobody's code."""
