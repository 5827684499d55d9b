"""The quickstart's warm start as the common beginning of benchmark runs."""

from slipstream.config.schema import RunConfig
from slipstream.loop.warm_start import warm_start
from slipstream.runtime.policy import Policy, open_policy
from slipstream.train.learner import Learner


def warm_policy(config: RunConfig) -> Policy:
    """The policy after the configuration's warm start."""
    policy = open_policy(config)
    learner = Learner(config, policy.spec, policy.params)
    for _ in warm_start(learner, policy.task, config.warm_start):
        pass
    return Policy(spec=policy.spec, params=learner.weights().params, task=policy.task)
