"""Asynchronous training: masters hold the central weights, workers lease batches and exchange updates for weights.

Read `leases` (who works on what), `holder` (what a master does with an update), `exchange` (what a worker sends),
`worker` and `coordinator` (the two loops), then `start` (which process is what).
"""
