"""A job in a process of its own, for tests that kill it: URL, dataset, output, repeats, concurrency."""

import asyncio
import sys

from rich.console import Console

from nemo_gym.config.types import JobConfig
from nemo_gym.rollouts.job import run_job
from nemo_gym.web.peers import ServerClient


def main() -> None:
    url, dataset, output, repeats, concurrency = sys.argv[1:]
    job = JobConfig(
        agent="agent",
        input=dataset,
        output=output,
        repeats=int(repeats),
        concurrency=int(concurrency),
        resume=True,
    )
    client = ServerClient({"agent": url, "policy_model": url})
    result = asyncio.run(
        run_job(job, client, run_id="run", model_servers=["policy_model"], config_digest="c", console=Console())
    )
    print(result.problem or "ok")
    sys.exit(result.exit_code)


if __name__ == "__main__":
    main()
