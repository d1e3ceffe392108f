"""Private mechanisms, a folder a family: the releases, their noise, and the models they give."""
