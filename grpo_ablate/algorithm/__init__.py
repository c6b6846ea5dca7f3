"""The algorithm: advantages, surrogates, reductions, KL, rewards, sampling and the loop, a file each."""
