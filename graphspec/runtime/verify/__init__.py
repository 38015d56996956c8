"""A replay held against eager: what is compared, and the net under every N-th run."""
