"""The clew server: a database of runs, studies and jobs behind a REST API and a dashboard.

The server never executes user code: agents do that, under the account of their user. Reading order:

    server.py, app.py     start the HTTP server; build the application from its routes
    service.py            everything one server holds: database, writer, accounts, artefact store, notifications
    middleware.py         size limit, security headers, log line and counters of every request
    problems.py           errors and the JSON answer to each of them
    config.py             settings of a server

    api/                  REST routes, one file per subject
    dashboard/            HTML pages
    database/             tables, migrations, connections and the one thread that writes
    accounts/             users, groups, tokens, audit log, rate limit
    runs/                 records of runs: ingestion, curves
    jobs/                 queue, agents, job logs
    studies/              hyper-parameter studies and their trials
    storage/              artefact contents, quotas, retention
    events/               notifications between threads, server-sent events
    monitoring/           log format, Prometheus metrics
"""
