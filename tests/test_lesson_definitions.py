"""What a lesson writes out and what the package ships are the same thing: they give the same results."""
