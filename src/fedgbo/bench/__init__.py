"""How fast is it? Ours, a plain PyTorch loop and the machine's own speed, side by side in one run."""
