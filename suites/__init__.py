"""What is tested: experiments as parametrized tests."""
