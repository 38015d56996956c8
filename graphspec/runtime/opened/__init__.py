"""What an opened spec is made of: its regions bound to the model, its buffers, its states, and who else uses them."""
