"""What is concluded from numbers, checked against values that are known."""
