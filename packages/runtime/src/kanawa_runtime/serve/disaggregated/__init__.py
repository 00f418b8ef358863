"""Prefill and decoding in two engines: one prefills prompts and sends their pages, the other one decodes."""
