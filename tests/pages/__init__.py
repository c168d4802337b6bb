"""Every command of the documentation is run by a test, or a table says why it is not.

`run_here.py` lists the pages whose commands these tests run, `elsewhere.py` the commands that another test runs, and
those that no test runs, with the reason.
"""
