"""`clew.Client`: use a clew server from Python.

This package also defines the messages between client, server and agent.

Reading order:

    client.py           `Client`, with one attribute per subject
    jobs.py, runs.py, studies.py, artefacts.py, datasets.py
                        the subjects: each method is one request
    connection.py       HTTP requests: token, retries, errors
    credentials.py      the server and token that `clew login` saved
    submission.py       from what a user names on the command line to a job
    job_handle.py       the job that `Client.submit` returns

Shared by client, server and agent (nothing here imports the server):

    job.py              a job: what is submitted, what it needs, its states, its result
    trial.py            a study and its trials
    agent_messages.py   what an agent and the server send each other
"""
