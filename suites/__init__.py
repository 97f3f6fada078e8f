"""The suites: experiments as parametrized tests."""
