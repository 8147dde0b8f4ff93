"""Speed: our engine, a plain PyTorch loop and the machine's matrix product, side by side in one run."""
