"""Policy of this checkout, and nothing else: what a site wants of every run belongs here.

For example a budget for all runs against real accounts::

    def pytest_configure(config):
        if any(not spec.startswith("emulated:") for spec in config.option.cloudbench_provider):
            config.option.cloudbench_max_ops = config.option.cloudbench_max_ops or 10_000

The suites' own policy is in suites/conftest.py, the project's tests have theirs in tests/.
"""
