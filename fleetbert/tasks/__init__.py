"""What an answer is: labels, the arrays of a step, figures. No Paddle."""
