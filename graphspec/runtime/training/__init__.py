"""What a region that trains finds and leaves besides its inputs and results: gradients, and the state of optimizers."""
