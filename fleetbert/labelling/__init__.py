"""Work on a table before it is trained on: wrong labels, and which texts to label next."""
