"""A study whose trials are jobs: the nodes of a real Slurm and another machine share them."""

from __future__ import annotations

from clew import Client
from tests.jobs.agent.conftest import StartAgent, start_agent
from tests.jobs.agent.test_trial_jobs import check_complete, printed_results, submit, trial_jobs
from tests.sites.cluster import Cluster
from tests.sites.conftest_service import Login
from tests.sites.test_slurm import until

__all__ = ["start_agent"]


def test_a_site_and_a_machine_share_a_study(site: Cluster, ada: Client, login: Login, start_agent: StartAgent) -> None:
    agents = [login(), start_agent(ada, "machine", cpus=1)]
    until(lambda: len([each for each in ada.agents() if each.alive]) == 2)
    job = submit(ada, trials=12, parallel=4, pause=0.5)
    check_complete(ada, job.id, 12)
    jobs = trial_jobs(ada, job.id)
    at_site = [each for each in jobs if each.agent != "machine"]
    assert 0 < len(at_site) < 12
    queue = site.call("squeue", "-h", "--states=all", "-o", "%A %j %T").splitlines()
    assert len([line for line in queue if "COMPLET" in line]) >= len(at_site)
    assert printed_results(agents) == {str(number): 1 for number in range(12)}
