"""How far the projector and the workers before it are, told to the database."""
