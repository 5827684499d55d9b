"""`slipstream grader`: judges replies for the samplers of a run that is somewhere else."""

from slipstream.cli.joining import CaOption, JoinOption, NameOption, TokenOption, until_it_leaves


def grader_command(join: JoinOption, token_file: TokenOption = None, name: NameOption = None, tls_ca: CaOption = None) -> None:
    """Join a run with grading.on=graders and judge its replies, until it is over. SIGTERM or Ctrl-C: hands in what it has, leaves.

    Example: slipstream grader --join http://127.0.0.1:8700
    """
    from slipstream.runtime.join.address import Address, JoinSettings, secret
    from slipstream.runtime.processes.parent import end_with_supervisor

    end_with_supervisor()
    settings = JoinSettings(address=Address(url=join, token=secret(token_file), ca_file=tls_ca), name=name)

    from slipstream.runtime.processes.grader import grade

    until_it_leaves(lambda stop: grade(settings, stop))
